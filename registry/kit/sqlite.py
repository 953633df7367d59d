"""aiosqlite with fewer turns of its thread: a statement and all its rows take one.

Its own cursor takes four, to be made, to execute, to fetch and to be closed. On a small database
they are most of what a transaction costs. What goes by keys is over before a turn would come, so
the loop does it itself: all but what may wait, for another writer or for the disk.
"""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Self

import aiosqlite

_ROWS_AT_ONCE = 64  # of an iteration, which SQLAlchemy never asks for


class Connection(aiosqlite.Connection):
    """For SQLAlchemy's dialect, whose cursors fetch all rows at once in any case."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """With what `sqlite3.connect` takes. It opens when it is awaited."""
        options["check_same_thread"] = False
        super().__init__(partial(sqlite3.connect, *arguments, **options), _ROWS_AT_ONCE)
        self._thread.daemon = True  # one that nobody closes holds up no end
        self._begun = self._ended = 0  # each is counted by one thread alone
        self._opening: str | None = None
        self._is_keyed = False
        self._patience_ms = round(options.get("timeout", 5.0) * 1000)

    def cursor(self) -> "Cursor":  # type: ignore[override]  # aiosqlite's own is made by a turn
        return Cursor(self)

    def begin(self, statement: str | None, *, is_keyed: bool) -> None:
        """Goes with the first statement of the transaction. None: that will be the only one."""
        self._opening, self._is_keyed = statement, is_keyed

    async def commit(self) -> None:
        if self._opening is None:
            await super().commit()
        self._opening = None

    async def rollback(self) -> None:
        """Asked for whenever a connection goes back to its pool, mostly after a commit.

        A statement that nobody waits for any longer may still begin a transaction.
        """
        self._opening = None
        if self._begun != self._ended or self.in_transaction:
            await super().rollback()

    async def run(self, cursor: "Cursor", statement: str, parameters: Any, *, many: bool) -> None:
        opening, self._opening = self._opening, None
        work = partial(self._run, cursor, opening, statement, parameters, many)
        is_idle = self._begun == self._ended
        if not (self._is_keyed and is_idle and self._is_done_at_once(work)):
            self._begun += 1
            await self._execute(self._in_turn, work)  # type: ignore[no-untyped-call]

    def _is_done_at_once(self, work: Callable[[], None]) -> bool:
        """False where it would have to wait for somebody else: then nothing is done."""
        self._conn.execute("PRAGMA busy_timeout=0")
        try:
            work()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            return False
        else:
            return True
        finally:
            self._conn.execute(f"PRAGMA busy_timeout={self._patience_ms}")

    def _in_turn(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            self._ended += 1

    def _run(
        self, cursor: "Cursor", opening: str | None, statement: str, parameters: Any, many: bool
    ) -> None:
        with closing(self._conn.cursor()) as real:
            if opening is not None:
                real.execute(opening)
            (real.executemany if many else real.execute)(statement, parameters)
            cursor.rows = real.fetchall() if real.description else []
            cursor.description = real.description
            cursor.rowcount, cursor.lastrowid = real.rowcount, real.lastrowid


class Cursor:
    """What SQLAlchemy's adapter asks of a cursor; it reads the attributes when it has executed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.rows: Sequence[Any] = ()
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: int | None = None
        self.arraysize = 1

    async def __aenter__(self) -> Self:
        return self

    async def execute(self, statement: str, parameters: Any = ()) -> Self:
        await self._connection.run(self, statement, parameters, many=False)
        return self

    async def executemany(self, statement: str, parameters: Any) -> Self:
        await self._connection.run(self, statement, parameters, many=True)
        return self

    async def fetchall(self) -> Sequence[Any]:
        return self.rows

    async def close(self) -> None:
        """It was, in its turn."""
