"""What can be wrong with a merge before it starts."""

from registry.kit.errors import Kind, ServiceError


class MergeNotFound(ServiceError):
    kind = Kind.not_found

    def __init__(self, merge_id: str) -> None:
        super().__init__(f"no merge {merge_id!r}")


class MergedAlready(ServiceError):
    kind = Kind.invalid

    def __init__(self, ref: str) -> None:
        super().__init__(f"version: {ref} is merged already; only a state or an adapter is merged")
