from registry.kit.errors import Kind, ServiceError


class BlobNotFound(ServiceError):
    kind = Kind.not_found

    def __init__(self, key: str) -> None:
        super().__init__(f"the object store has no {key!r}")


class MultipartNotFound(ServiceError):
    """It was finished, aborted, or never begun."""

    kind = Kind.not_found

    def __init__(self, key: str) -> None:
        super().__init__(f"the object store has no such unfinished upload of {key!r}")


class PartsRefused(ServiceError):
    kind = Kind.invalid

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"the parts of {key!r} make no object: {reason}")


class InvalidArtifactName(ServiceError):
    kind = Kind.invalid

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"file name {name!r} {reason}")


class ArtifactRefused(ServiceError):
    kind = Kind.invalid

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")


class StoreUnavailable(ServiceError):
    kind = Kind.unavailable

    def __init__(self, reason: str, *, detail: str = "") -> None:
        """`detail` may name places of the operator's."""
        message = f"the object store is not available: {reason}"
        super().__init__(message, whole=f"{message} ({detail})" if detail else None)


class StoreRefused(ServiceError):
    """Asking again will not help: its settings, its credentials or its abilities are at fault. Its
    own words may name a bucket or a key of ours, and are the operator's alone."""

    kind = Kind.internal

    def __init__(self, code: str, reason: str) -> None:
        message = f"the object store refuses: {code}"
        super().__init__(message, whole=f"{message}: {reason}")
        self.code = code


class CorruptArtifact(ServiceError):
    kind = Kind.internal

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"stored file {name!r} is damaged: {reason}")
