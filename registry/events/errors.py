from registry.kit.errors import Kind, ServiceError


class WebhookNotFound(ServiceError):
    kind = Kind.not_found

    def __init__(self, webhook_id: str) -> None:
        super().__init__(f"no webhook with the id {webhook_id!r}")


class DeliveryNotFound(ServiceError):
    kind = Kind.not_found

    def __init__(self, delivery_id: str) -> None:
        super().__init__(f"this webhook has no delivery with the id {delivery_id!r}")


class EventNotFound(ServiceError):
    kind = Kind.invalid

    def __init__(self, event_id: str) -> None:
        super().__init__(f"after: no event with the id {event_id!r}, or no longer")


class InvalidWebhook(ServiceError):
    kind = Kind.invalid

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")


class TargetRefused(InvalidWebhook):
    """Where an event is not sent to, whoever asks for it."""

    def __init__(self, reason: str) -> None:
        super().__init__("url", reason)


class TooManyWebhooks(ServiceError):
    kind = Kind.conflict

    def __init__(self, most: int) -> None:
        super().__init__(f"an account has {most} webhooks at most; delete one first")


class DeliveryPending(ServiceError):
    kind = Kind.conflict

    def __init__(self, delivery_id: str, *, next_at: str) -> None:
        super().__init__(f"{delivery_id} is not given up: it is sent again by itself at {next_at}")


class WebhookDisabled(ServiceError):
    kind = Kind.conflict

    def __init__(self, webhook_id: str) -> None:
        super().__init__(f"{webhook_id} is disabled; enable it first")
