from typing import ClassVar

from registry.kit.errors import Kind, ServiceError


class InvalidKey(ServiceError):
    kind = Kind.malformed

    def __init__(self) -> None:
        super().__init__("Idempotency-Key: not 1 to 255 printable ASCII characters")


class KeyReused(ServiceError):
    kind = Kind.invalid

    def __init__(self) -> None:
        super().__init__(
            "Idempotency-Key: it was used for another request; the same key means the same "
            "method, path and body. Nothing was done"
        )


class StillRunning(ServiceError):
    kind = Kind.conflict
    retry_after_s: ClassVar[int | None] = 1

    def __init__(self) -> None:
        super().__init__("the first request with this Idempotency-Key still runs; ask again soon")


class AnswerUnknown(ServiceError):
    kind = Kind.conflict

    def __init__(self) -> None:
        super().__init__(
            "the first request with this Idempotency-Key was carried out, but its answer was lost, "
            "was too large to keep or had a secret in it. It is not carried out again: look at "
            "what it was to change"
        )


class KeyTakenOver(ServiceError):
    kind = Kind.conflict
    retry_after_s: ClassVar[int | None] = 1

    def __init__(self) -> None:
        super().__init__(
            "another request with this Idempotency-Key has taken over, because this one took too "
            "long; nothing was done here"
        )
