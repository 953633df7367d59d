"""Every error the client raises.

ModelyardError
├── ConfigurationError      no URL or no API key is known
├── InvalidInput            an argument that was refused before anything was sent
├── ClientClosed            the ServiceClient was closed first
├── ConnectionFailed        no answer, or only 502 to 504, until the timeout
├── APIError                the service answered with an error
│   ├── InvalidRequestError     400, 422, 428
│   ├── AuthenticationError     401
│   ├── PermissionDeniedError   403
│   ├── NotFoundError           404
│   ├── ConflictError           409
│   ├── PreconditionFailedError 412
│   ├── LimitExceededError      429
│   └── ServerError             5xx
├── OperationFailed         an accepted operation, or a merge, failed
├── SessionNotRunning       the session failed, expired or was stopped
├── OutcomeUnknown          an earlier operation may have run though its call failed
├── IncompleteGradient      an optimizer step would have missed a failed forward_backward
└── DeploymentFailed        a promotion or a rollback did not take traffic
"""

from collections.abc import Mapping


class ModelyardError(Exception):
    pass


class ConfigurationError(ModelyardError):
    pass


class InvalidInput(ModelyardError, ValueError):
    pass


class ClientClosed(ModelyardError):
    def __init__(self) -> None:
        super().__init__("the ServiceClient was closed before this call had its result")


class ConnectionFailed(ModelyardError):
    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"no answer from {url}: {reason}")
        self.url = url


class APIError(ModelyardError):
    def __init__(self, status: int, detail: str, kind: str = "") -> None:
        super().__init__(f"{detail} (HTTP {status})")
        self.status = status
        self.detail = detail
        self.kind = kind


class InvalidRequestError(APIError):
    pass


class AuthenticationError(APIError):
    pass


class PermissionDeniedError(APIError):
    pass


class NotFoundError(APIError):
    pass


class ConflictError(APIError):
    pass


class PreconditionFailedError(APIError):
    pass


class LimitExceededError(APIError):
    pass


class ServerError(APIError):
    pass


class OperationFailed(ModelyardError):
    """`kind` is the service's error kind: `invalid`, `not_found`, `internal`, ... or `skipped`."""

    def __init__(self, operation_id: str, kind: str, message: str) -> None:
        super().__init__(f"{message} (operation {operation_id}, {kind})")
        self.operation_id = operation_id
        self.kind = kind
        self.message = message


class SessionNotRunning(ModelyardError):
    def __init__(self, session: str, status: str, error: str | None) -> None:
        super().__init__(f"session {session} is {status}" + (f": {error}" if error else ""))
        self.session = session
        self.status = status


class OutcomeUnknown(ModelyardError):
    def __init__(self, session: str, number: int, kind: str) -> None:
        super().__init__(
            f"operation {number} ({kind}) of session {session} reached the service although its "
            "call failed, so it may have run; look at the session, then go on with "
            f"ServiceClient.get_training_client({session!r})"
        )
        self.number = number


class IncompleteGradient(ModelyardError):
    def __init__(self) -> None:
        super().__init__(
            "a forward_backward since the last optim_step failed, so this step would have used "
            "an incomplete gradient; the gradient is cleared and the weights are unchanged. After "
            "a failed forward_backward call clear_gradient() and repeat its batches"
        )


class DeploymentFailed(ModelyardError):
    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"deployment {name!r}: {message}")
        self.name = name


_BY_STATUS: Mapping[int, type[APIError]] = {
    400: InvalidRequestError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    412: PreconditionFailedError,
    422: InvalidRequestError,
    428: InvalidRequestError,
    429: LimitExceededError,
}


def api_error(status: int, detail: str, kind: str = "") -> APIError:
    form = ServerError if status >= 500 else _BY_STATUS.get(status, APIError)
    return form(status, detail, kind)
