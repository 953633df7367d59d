"""What a database may suffer from that is no fault of what was asked of it.

Only codes decide, never words: a statement that is wrong must not pass for a database that is busy.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolExhausted

_AWAY_CLASSES = frozenset(
    (
        *("08", "53", "57", "58"),  # connection, resources, an operator's hand, the system
        *("40001", "40P01", "55P03"),  # lost to another transaction, which may be over by now
        *("25006", "25P03", "25P04"),  # a standby takes over; a time-out of the server's own
    )
)
_AWAY_CODES = frozenset(
    (
        *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL),
        *(sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY),
        *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM),
    )
)
_FULL_STATES = frozenset(("53100",))


class DatabaseTrouble(Exception):
    """Busy, restarting, gone or full: the same transaction may succeed a moment later."""

    def __init__(self, reason: str, *, is_full: bool = False) -> None:
        super().__init__(reason)
        self.is_full = is_full

    @classmethod
    def in_error(cls, error: DBAPIError | PoolExhausted) -> Self | None:
        """None if the error is nothing of the kind."""
        if not isinstance(error, DBAPIError):
            return cls("every connection is taken")
        cause = error.orig
        reason = " ".join(str(cause).split())
        if isinstance(cause, sqlite3.Error):
            code = getattr(cause, "sqlite_errorcode", 0) & 0xFF  # the rest says where it happened
            return cls(reason, is_full=code == sqlite3.SQLITE_FULL) if code in _AWAY_CODES else None
        state: str | None = getattr(cause, "sqlstate", None)
        if state is None:
            # What no server said: the connection broke, or there was none to ask anything of.
            unasked = error.statement is None
            return cls(reason) if error.connection_invalidated or unasked else None
        if {state, state[:2]} & _AWAY_CLASSES:
            return cls(reason, is_full=state in _FULL_STATES)
        return None


@contextmanager
def trouble_told() -> Iterator[None]:
    try:
        yield
    except (DBAPIError, PoolExhausted) as error:
        trouble = DatabaseTrouble.in_error(error)
        if trouble is None:
            raise
        raise trouble from error
