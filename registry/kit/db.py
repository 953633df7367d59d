"""One engine, one declarative base, one way to open a transaction."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, DateTime, Dialect, MetaData, TypeDecorator, event
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.pool import ConnectionPoolEntry

from registry.kit import sqlite
from registry.kit.trouble import trouble_told

READ_ONLY = {"read_only": True}
_KEYED = {"is_keyed": True}
_IDLE_S = 1.0
_LAST_USED = "last_used"

joining: ContextVar[Callable[[AsyncSession], Awaitable[None]] | None] = ContextVar(
    "joining", default=None
)
"""What takes part in every transaction that the running request commits, at its end."""


Asked = AsyncSession | AsyncConnection
"""What can be read from by its columns alone."""


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class UtcDateTime(TypeDecorator[datetime]):
    """A moment. SQLite forgets the zone, so it is put back; PostgreSQL keeps it."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.astimezone(UTC) if value else None

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.replace(tzinfo=UTC) if value and value.tzinfo is None else value


class Database:
    """The unit of work: all inside one `async with database.begin()` commits, or none does.

    Either raises DatabaseTrouble where the database is busy, gone or full.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self._sessions = async_sessionmaker(engine, expire_on_commit=False)
        self._keyed = async_sessionmaker(engine.execution_options(**_KEYED), expire_on_commit=False)
        options: dict[str, Any] = dict(READ_ONLY)
        if engine.dialect.name == "postgresql":
            # At READ COMMITTED every statement has a snapshot of its own, in a transaction or not.
            options["isolation_level"] = "AUTOCOMMIT"
        self._readers = async_sessionmaker(
            engine.execution_options(**options), expire_on_commit=False
        )
        self._asked = engine.execution_options(**options, **_KEYED)

    @classmethod
    def connect(cls, url: str, *, busy_timeout_s: int = 30) -> "Database":
        """`busy_timeout_s` is how long a SQLite writer waits for another one."""
        engine = create_async_engine(url, json_deserializer=msgspec.json.decode)
        if engine.dialect.name == "sqlite":
            _tame_sqlite(engine, busy_timeout_s)
        else:
            _test_what_was_idle(engine)
        return cls(engine)

    @asynccontextmanager
    async def begin(self, *, keyed: bool = False) -> AsyncIterator[AsyncSession]:
        """`keyed`: each statement goes by a key to a row or two, so that none takes long."""
        sessions = self._keyed if keyed else self._sessions
        with trouble_told():
            async with sessions.begin() as db:
                yield db
                if (join := joining.get()) is not None:
                    await join(db)

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncSession]:
        """To read from: takes no write lock and never commits. A snapshot on SQLite; on PostgreSQL
        each statement has its own, as in every transaction at READ COMMITTED."""
        with trouble_told():
            async with self._readers() as db:
                yield db

    @asynccontextmanager
    async def ask(self) -> AsyncIterator[AsyncConnection]:
        """To read by a key, with one statement: it needs no transaction to have a snapshot, and no
        session, which would keep objects."""
        with trouble_told():
            async with self._asked.connect() as db:
                yield db

    async def close(self) -> None:
        await self.engine.dispose()


def _tame_sqlite(engine: AsyncEngine, busy_timeout_s: int) -> None:
    """WAL, foreign keys, and writers that queue at BEGIN instead of failing at a first write."""

    @event.listens_for(engine.sync_engine, "do_connect")
    def open_ours(_: Any, __: Any, ___: Any, options: dict[str, Any]) -> None:
        options |= {"async_creator_fn": sqlite.Connection, "timeout": busy_timeout_s}

    @event.listens_for(engine.sync_engine, "connect")
    def configure(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # SQLAlchemy, not the driver, says BEGIN
        cursor = connection.cursor()
        cursor.execute("PRAGMA foreign_keys=ON")
        _turn_wal_on(connection, cursor, busy_timeout_s)
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        reading, keyed = options.get("read_only", False), options.get("is_keyed", False)
        statement = "BEGIN" if reading else "BEGIN IMMEDIATE"
        driver: Any = connection.connection.driver_connection
        driver.begin(None if reading and keyed else statement, is_keyed=keyed)


def _test_what_was_idle(engine: AsyncEngine) -> None:
    """A connection that lay unused may have lost its server; one in use tells by itself, and a test
    of each would cost every request a round trip."""

    @event.listens_for(engine.sync_engine, "checkin")
    def returned(_: Any, record: ConnectionPoolEntry) -> None:
        record.info[_LAST_USED] = time.monotonic()

    @event.listens_for(engine.sync_engine, "checkout")
    def taken(connection: Any, record: ConnectionPoolEntry, _: Any) -> None:
        last_used = record.info.get(_LAST_USED)
        if last_used is None or time.monotonic() - last_used < _IDLE_S:
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError from error


def _turn_wal_on(connection: Any, cursor: Any, wait_s: int) -> None:
    """Two that do so to one new file at the same time refuse each other without waiting."""
    end = time.monotonic() + wait_s
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            connection.run_async(lambda _: asyncio.sleep(0.01))
        else:
            return
