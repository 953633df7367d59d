"""Compare-and-set and the history on the databases that we have, as the migrations make them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from registry.access.actor import Actor
from registry.kit import migrate
from registry.kit.db import Database
from registry.packages import moves, service
from registry.packages.errors import AliasMoved, VersionMoved
from registry.packages.model import Approval
from registry.packages.ref import PackageRef
from support.packages import a_draft, a_version, an_actor

MIGRATIONS = Path(__file__).parents[2] / "migrations"


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    url = f"sqlite+aiosqlite:///{tmp_path}/home.db"
    if request.param == "postgresql":
        found: str = request.getfixturevalue("postgres_url")
        url = found.replace("postgresql://", "postgresql+psycopg://")
    await migrate.ensure(url, MIGRATIONS)
    database = Database.connect(url)
    yield database
    await database.close()


@pytest.fixture
async def actor(database: Database) -> Actor:
    """With two versions in the group `demo`."""
    async with database.begin() as db:
        actor = await an_actor(db)
        for _ in range(2):
            await a_version(db, actor)
    return actor


async def point(database: Database, actor: Actor, version: int, expected: int | None) -> str:
    try:
        async with database.begin() as db:
            await moves.point(db, actor, "demo", "prod", version=version, expected=expected)
    except AliasMoved:
        return "moved"
    return "made"


async def targets(database: Database, actor: Actor) -> list[str | None]:
    async with database.read() as db:
        return [event.target for event in (await moves.history(db, actor, "demo")).items]


async def test_of_many_moves_from_one_revision_one_is_made(
    database: Database, actor: Actor
) -> None:
    made = await asyncio.gather(*(point(database, actor, 1, None) for _ in range(10)))
    assert Counter(made) == {"made": 1, "moved": 9}
    moved = await asyncio.gather(*(point(database, actor, 2, 1) for _ in range(10)))
    assert Counter(moved) == {"made": 1, "moved": 9}
    assert await targets(database, actor) == ["demo@2", "demo@1"]


async def test_of_many_decisions_on_one_state_one_is_made(database: Database, actor: Actor) -> None:
    async def decide(approval: Approval) -> str:
        ref = PackageRef("demo", 1)
        try:
            async with database.begin() as db:
                await moves.decide(db, actor, ref, approval=approval, expected=1, why="")
        except VersionMoved:
            return "moved"
        return "made"

    each = (Approval.approved, Approval.rejected) * 5
    made = await asyncio.gather(*(decide(approval) for approval in each))
    assert Counter(made) == {"made": 1, "moved": 9}
    assert len(await targets(database, actor)) == 1


async def test_parallel_registrations_get_distinct_consecutive_numbers(
    database: Database, actor: Actor
) -> None:
    async def one() -> int:
        async with database.begin() as db:
            draft = a_draft(actor, "demo")
            return (await service.register(db, actor, group_name="demo", draft=draft)).version

    assert sorted(await asyncio.gather(*(one() for _ in range(64)))) == list(range(3, 67))
