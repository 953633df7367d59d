"""What can be wrong with an operation before it is accepted."""

from registry.kit.errors import Kind, ServiceError


class OperationNotFound(ServiceError):
    kind = Kind.not_found

    def __init__(self, operation_id: str) -> None:
        super().__init__(f"no operation {operation_id!r}")


class NumberTaken(ServiceError):
    kind = Kind.conflict

    def __init__(self, number: int, *, operation_id: str, held: str, given: str) -> None:
        super().__init__(
            f"number {number} is operation {operation_id} with body {held[:12]}; "
            f"this call has another token and another body, {given[:12]}"
        )


class InvalidNumber(ServiceError):
    kind = Kind.invalid

    def __init__(self, number: int, *, next_number: int) -> None:
        super().__init__(
            f"number: {number} is out of range; this session's next operation is {next_number}"
        )


class InvalidBody(ServiceError):
    kind = Kind.malformed

    def __init__(self, reason: str) -> None:
        super().__init__(f"body: {reason}")
