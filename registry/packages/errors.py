from collections.abc import Sequence

from registry.kit.errors import Kind, ServiceError


class GroupNotFound(ServiceError):
    kind = Kind.not_found

    def __init__(self, name: str) -> None:
        super().__init__(f"no package group named {name!r}")


class GroupExists(ServiceError):
    kind = Kind.conflict

    def __init__(self, name: str) -> None:
        super().__init__(f"a package group named {name!r} exists already")


class VersionNotFound(ServiceError):
    kind = Kind.not_found

    def __init__(self, ref: object) -> None:
        super().__init__(f"no version {ref}")


class FileNotFound(ServiceError):
    kind = Kind.not_found

    def __init__(self, ref: str, path: str) -> None:
        super().__init__(f"version {ref} has no file {path!r}")


class InvalidRef(ServiceError):
    kind = Kind.invalid

    def __init__(self, text: str) -> None:
        super().__init__(f"{text!r} is not a version; write GROUP@VERSION, as in my-group@3")


class InvalidPackage(ServiceError):
    kind = Kind.invalid

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")


class AlreadyRegistered(ServiceError):
    kind = Kind.conflict

    def __init__(self, package_id: str) -> None:
        super().__init__(f"package {package_id} is registered already; a version never changes")


class PackageIsImmutable(ServiceError):
    kind = Kind.internal

    def __init__(self, fields: Sequence[str]) -> None:
        super().__init__(f"a registered version never changes, but {', '.join(fields)} would")


class NotResumable(ServiceError):
    kind = Kind.conflict

    def __init__(self, ref: str, *, kind: str, missing: str) -> None:
        super().__init__(
            f"{ref} is not resumable: it is of kind {kind} and lacks {missing} (optimizer moments, "
            "step counter, random state); resume from a version of kind state"
        )


class NotPromotable(ServiceError):
    kind = Kind.conflict

    def __init__(self, ref: str, *, kind: str, missing: str) -> None:
        group, _, version = ref.partition("@")
        super().__init__(
            f"{ref} is not promotable: it is of kind {kind} and lacks {missing} (full weights); "
            f"make a merged version of it first: modelyard merge {group} {version}"
        )
