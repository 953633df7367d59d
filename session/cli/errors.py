"""How commands end: the exit codes, and the one table from what went wrong to one of them."""

from collections.abc import Mapping
from enum import IntEnum

from registry.kit.errors import Kind, ServiceError
from session.client.errors import APIError, ConnectionFailed


class Ending(IntEnum):
    """docs/cli.md says what each means to whoever calls us."""

    done = 0
    failed = 1
    misused = 2
    missing = 3
    refused = 4
    away = 5
    interrupted = 130
    unread = 141


class CommandFailed(Exception):
    """What a command found to be wrong by itself. The message is the line that is printed."""

    def __init__(self, message: str, ending: Ending = Ending.failed) -> None:
        super().__init__(message)
        self.ending = ending


_BY_KIND: Mapping[Kind, Ending] = {
    Kind.malformed: Ending.failed,
    Kind.invalid: Ending.failed,
    Kind.unauthenticated: Ending.refused,
    Kind.forbidden: Ending.refused,
    Kind.not_found: Ending.missing,
    Kind.conflict: Ending.refused,
    Kind.precondition_failed: Ending.refused,
    Kind.precondition_required: Ending.refused,
    Kind.limit_exceeded: Ending.away,
    Kind.unavailable: Ending.away,
    Kind.internal: Ending.failed,
}
_BY_STATUS: Mapping[int, Ending] = {
    401: Ending.refused,
    403: Ending.refused,
    404: Ending.missing,
    409: Ending.refused,
    412: Ending.refused,
    428: Ending.refused,
    429: Ending.away,
    502: Ending.away,
    503: Ending.away,
    504: Ending.away,
}


def ending(error: Exception) -> Ending:
    match error:
        case CommandFailed():
            return error.ending
        case ServiceError():
            return _BY_KIND[error.kind]
        case APIError():
            return _BY_STATUS.get(error.status, Ending.failed)
        case ConnectionFailed():
            return Ending.away
        case _:
            return Ending.failed
