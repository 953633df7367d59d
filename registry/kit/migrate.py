"""The schema's version: what a database holds, what this code needs, and the way between them."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError

from registry.kit.db import READ_ONLY, Database
from registry.kit.errors import Kind, ServiceError

VERSION_TABLE = "modelyard_schema"
_ADVISORY_LOCK = 0x6D6F64656C796172  # any number will do that no other program is likely to use
_RETRY_S = 0.1
LOCK_TIMEOUT_S = 5
"""How long a migration waits for a lock: on PostgreSQL every later query waits behind it."""
TEXT_INDEX = "ix_packages_description_trgm"
"""Where PostgreSQL has the extension for it, and so in no model."""


class SchemaState(StrEnum):
    empty = "empty"
    current = "current"
    older = "older"
    newer = "newer"
    foreign = "foreign"


@dataclass(frozen=True, slots=True)
class Schema:
    """`found` is the database's revision, `head` the one this code needs."""

    state: SchemaState
    found: str | None
    head: str | None


class DatabaseUnusable(ServiceError):
    kind = Kind.unavailable

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"the database {where} cannot be used: {reason}")


class SchemaOutdated(ServiceError):
    kind = Kind.precondition_failed

    def __init__(self, where: str, schema: Schema) -> None:
        super().__init__(
            f"the database {where} has the older schema {schema.found}, and this version of"
            f" modelyard needs {schema.head}; run: modelyard db upgrade"
        )


class SchemaNewer(ServiceError):
    kind = Kind.precondition_failed

    def __init__(self, where: str, schema: Schema) -> None:
        super().__init__(
            f"the database {where} has the schema {schema.found}, which this version of modelyard"
            f" (schema {schema.head}) does not know; install the newer modelyard that made it"
        )


class SchemaForeign(ServiceError):
    kind = Kind.conflict

    def __init__(self, where: str) -> None:
        super().__init__(
            f"the database {where} holds tables that modelyard did not make;"
            " give it a database of its own"
        )


def connect(url: str) -> Database:
    """A database to migrate. SQLite rebuilds tables there, which live foreign keys would veto."""
    try:
        database = Database.connect(url, busy_timeout_s=LOCK_TIMEOUT_S)
    except (ArgumentError, ModuleNotFoundError) as error:
        raise DatabaseUnusable("named in the settings", str(error)) from None
    if database.engine.dialect.name == "sqlite":
        _make_file(database.engine.url)
        event.listen(database.engine.sync_engine, "connect", _foreign_keys_off)
    return database


def is_in_models(_: object, name: str | None, *__: object) -> bool:
    """For Alembic's `include_object`: whether what a database holds is compared with the models."""
    return name != TEXT_INDEX


async def status(url: str, migrations: Path) -> Schema:
    database = connect(url)
    try:
        async with database.engine.connect() as connection:
            await connection.execution_options(**READ_ONLY)
            return await connection.run_sync(_schema, migrations)
    except DBAPIError as error:
        raise DatabaseUnusable(_where(url), _reason(error)) from None
    finally:
        await database.close()


async def ensure(url: str, migrations: Path) -> Schema:
    """Migrate an empty database; refuse one that another version of the code has made."""
    schema = await status(url, migrations)
    if schema.state == SchemaState.current:
        return schema
    async with _alone(url):
        schema = await status(url, migrations)  # another process may just have migrated it
        match schema.state:
            case SchemaState.older:
                raise SchemaOutdated(_where(url), schema)
            case _:
                return await _migrate(url, migrations, schema)


async def upgrade(url: str, migrations: Path) -> Schema:
    """Bring an empty or older database to the head. Each migration is one transaction."""
    async with _alone(url):
        return await _migrate(url, migrations, await status(url, migrations))


async def _migrate(url: str, migrations: Path, schema: Schema) -> Schema:
    match schema.state:
        case SchemaState.newer:
            raise SchemaNewer(_where(url), schema)
        case SchemaState.foreign:
            raise SchemaForeign(_where(url))
        case SchemaState.current:
            return schema
    database = connect(url)
    try:
        async with database.engine.connect() as connection:
            await connection.run_sync(_upgrade, migrations)
    except DBAPIError as error:
        raise DatabaseUnusable(_where(url), f"the migration failed: {_reason(error)}") from error
    finally:
        await database.close()
    return await status(url, migrations)


def _upgrade(connection: Connection, migrations: Path) -> None:
    config = _config(migrations)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _schema(connection: Connection, migrations: Path) -> Schema:
    scripts = ScriptDirectory.from_config(_config(migrations))
    head = scripts.get_current_head()
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    found = context.get_current_revision()
    if found is None:
        tables = set(inspect(connection).get_table_names()) - {VERSION_TABLE}
        return Schema(SchemaState.foreign if tables else SchemaState.empty, None, head)
    if found == head:
        return Schema(SchemaState.current, found, head)
    known = {script.revision for script in scripts.walk_revisions()}
    return Schema(SchemaState.older if found in known else SchemaState.newer, found, head)


def _config(migrations: Path) -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    return config


@asynccontextmanager
async def _alone(url: str) -> AsyncIterator[None]:
    """One migration at a time, whatever the process. Either lock dies with its holder."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        with _opened(f"{parsed.database}.migration") as file:
            while not _taken(file):  # noqa: ASYNC110 - the holder is another process
                await asyncio.sleep(_RETRY_S)
            yield
        return
    database = connect(url)
    try:
        async with database.engine.connect() as connection:
            # Outside any transaction, and asking again rather than waiting in one statement: an
            # index that is built beside writers waits for every statement that is under way.
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            ask, key = text("SELECT pg_try_advisory_lock(:key)"), {"key": _ADVISORY_LOCK}
            while not await connection.scalar(ask, key):  # noqa: ASYNC110 - as above
                await asyncio.sleep(_RETRY_S)
            yield
    finally:
        await database.close()


def _make_file(url: URL) -> None:
    """Ahead of SQLite: it would make the file readable by all, and say less where it cannot."""
    if url.database and url.database != ":memory:":
        with _opened(url.database):
            pass


@contextmanager
def _opened(path: str) -> Iterator[int]:
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise DatabaseUnusable(path, error.strerror or str(error)) from None
    try:
        yield file
    finally:
        os.close(file)


def _taken(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _foreign_keys_off(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys=OFF")
    cursor.close()


def _where(url: str) -> str:
    """A name for a message: never with the password."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return parsed.database or "in memory"
    return parsed.set(query={}).render_as_string(hide_password=True)


def _reason(error: DBAPIError) -> str:
    return " ".join(str(error.orig).split())
