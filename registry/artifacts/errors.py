from registry.kit.errors import Kind, ServiceError


class BlobNotFound(ServiceError):
    kind = Kind.not_found

    def __init__(self, key: str) -> None:
        super().__init__(f"the object store has no {key!r}")


class InvalidArtifactName(ServiceError):
    kind = Kind.invalid

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"file name {name!r} {reason}")


class ArtifactRefused(ServiceError):
    kind = Kind.invalid

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")


class CorruptArtifact(ServiceError):
    kind = Kind.internal

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"stored file {name!r} is damaged: {reason}")
