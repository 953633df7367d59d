"""What can be wrong with a sampling request before the engine sees it."""

from registry.kit.errors import Kind, ServiceError


class InvalidSampling(ServiceError):
    kind = Kind.invalid

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")


class WeightsNotFound(ServiceError):
    kind = Kind.not_found

    def __init__(self, weights_id: str) -> None:
        super().__init__(f"no sampler weights {weights_id!r}; they end with their session")


class TokenReused(ServiceError):
    kind = Kind.conflict

    def __init__(self, token: str, request_id: str) -> None:
        super().__init__(f"token: {token!r} is sampling request {request_id} with another body")


class SamplingFailed(ServiceError):
    """The engine refused or lost the request. The kind is the engine's, not the class's."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind  # type: ignore[misc]  # one class for whatever the worker reports
