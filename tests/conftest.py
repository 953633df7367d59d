"""Fixtures that any test may use."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from registry.kit.db import Database
from support.database import fresh_database
from support.postgres import PostgresMissing, fresh_postgres, postgres_server


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with fresh_database(tmp_path) as database:
        yield database


@pytest.fixture
async def db(database: Database) -> AsyncIterator[AsyncSession]:
    """One transaction, committed at the end of the test."""
    async with database.begin() as db:
        yield db


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A real server's URL. A developer may lack one; CI may not."""
    try:
        with postgres_server() as url:
            yield url
    except PostgresMissing as reason:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(reason))


@pytest.fixture
def postgres_url(postgres: str) -> Iterator[str]:
    """An empty database of that server."""
    with fresh_postgres(postgres) as url:
        yield url
