"""A fresh SQLite database with every registered table, for tests below the migrations."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from registry.kit.db import Base, Database


@asynccontextmanager
async def fresh_database(folder: Path) -> AsyncIterator[Database]:
    """The caller imports the models it uses: only imported tables exist."""
    database = Database.connect(f"sqlite+aiosqlite:///{folder}/test.db")
    async with database.engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    try:
        yield database
    finally:
        await database.close()
