from collections.abc import Sequence

from registry.kit.errors import Kind, ServiceError


class UploadNotFound(ServiceError):
    kind = Kind.not_found

    def __init__(self, upload_id: str) -> None:
        super().__init__(f"no upload {upload_id!r}")


class InvalidUpload(ServiceError):
    kind = Kind.invalid

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")


class UploadTokenReused(ServiceError):
    kind = Kind.conflict

    def __init__(self, upload_id: str, field: str) -> None:
        super().__init__(f"token: upload {upload_id} has it already, with another {field}")


class UploadIncomplete(ServiceError):
    """Nothing is lost: what is missing can still be sent."""

    kind = Kind.conflict

    def __init__(self, path: str, missing: Sequence[int]) -> None:
        parts = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        super().__init__(f"{path}: part {parts} is missing; send it, then commit again")


class UploadFailed(ServiceError):
    """What came is not what was said, or cannot be used. It names the file and the reason."""

    kind = Kind.invalid

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class UploadOver(ServiceError):
    kind = Kind.conflict

    def __init__(self, upload_id: str, state: str, ref: str | None) -> None:
        made = f" and made {ref}" if ref else ""
        super().__init__(f"upload {upload_id} is {state}{made}; it takes nothing any more")


class CommitRunning(ServiceError):
    kind = Kind.conflict

    def __init__(self, upload_id: str) -> None:
        super().__init__(f"upload {upload_id} is being committed; ask again how it went")


class PartRefused(ServiceError):
    kind = Kind.invalid

    def __init__(self, path: str, number: int, reason: str) -> None:
        super().__init__(f"{path}: part {number} {reason}")


class UploadFileNotFound(ServiceError):
    kind = Kind.not_found

    def __init__(self, upload_id: str, path: str) -> None:
        super().__init__(f"upload {upload_id} has no file {path!r}")


class CommitBroken(ServiceError):
    """A fault of ours, which is logged. The upload is open again."""

    kind = Kind.internal

    def __init__(self) -> None:
        super().__init__("unexpected error; the server log has it")


class ClaimLost(ServiceError):
    """Somebody else commits it now: ask again how that goes."""

    kind = Kind.unavailable

    def __init__(self, upload_id: str) -> None:
        super().__init__(f"upload {upload_id} is committed by another process; ask again")
