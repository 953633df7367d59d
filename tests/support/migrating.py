"""The project's migrations, driven up and down by a test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

import session.lifecycle.model
import session.merges.model
import session.operations.model
import session.sampling.model  # noqa: F401
from registry.kit import migrate
from registry.kit.db import Base

T = TypeVar("T")
MIGRATIONS = Path(__file__).parents[2] / "migrations"


def differences(connection: Connection) -> list[object]:
    options = {
        "version_table": migrate.VERSION_TABLE,
        "compare_server_default": True,
        "include_object": migrate.is_in_models,
    }
    context = MigrationContext.configure(connection, opts=options)
    found: list[object] = compare_metadata(context, Base.metadata)
    return found


def steer(connection: Connection, direction: str, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    getattr(command, direction)(config, revision)


async def on(url: str, work: Callable[..., T], *values: Any) -> T:
    """In a connection that migrates."""
    database = migrate.connect(url)
    try:
        async with database.engine.connect() as connection:
            return await connection.run_sync(work, *values)
    finally:
        await database.close()


def revisions() -> list[str]:
    """Oldest first."""
    scripts = ScriptDirectory(str(MIGRATIONS))
    return [script.revision for script in scripts.walk_revisions()][::-1]
