from registry.kit.errors import Kind, ServiceError


class InvalidUsage(ServiceError):
    kind = Kind.invalid

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
