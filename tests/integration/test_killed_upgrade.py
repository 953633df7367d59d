"""An upgrade of a filled database that is killed wherever it may be killed."""

import asyncio
from pathlib import Path

import pytest

from registry.kit import migrate
from registry.kit.migrate import SchemaState
from support.killed import upgrade_killed_after
from support.migrating import MIGRATIONS, differences, on, revisions, steer
from support.rows import contents, fill

FIRST = "a5db63d47c2c"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path}/home.db"
    found: str = request.getfixturevalue("postgres_url")
    return found.replace("postgresql://", "postgresql+psycopg://")


async def test_an_upgrade_killed_after_each_statement_is_taken_up_again(url: str) -> None:
    await on(url, steer, "upgrade", FIRST)
    await on(url, fill, 1000)
    before = await on(url, contents)
    assert sum(map(len, before.values())) > 10_000
    reached, statements = FIRST, 1
    while await asyncio.to_thread(upgrade_killed_after, statements, url, MIGRATIONS):
        found = (await migrate.status(url, MIGRATIONS)).found
        assert found in revisions()
        reached, statements = (found, 1) if found != reached else (reached, statements + 1)
    assert (await migrate.status(url, MIGRATIONS)).state == SchemaState.current
    assert await on(url, contents, before) == before
    assert await on(url, differences) == []
