"""Fixtures that any test may use."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from registry.kit.db import Database
from support.database import fresh_database


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with fresh_database(tmp_path) as database:
        yield database


@pytest.fixture
async def db(database: Database) -> AsyncIterator[AsyncSession]:
    """One transaction, committed at the end of the test."""
    async with database.begin() as db:
        yield db
