"""Many writers on one database, each with an event loop of its own, and many servers at once."""

import asyncio
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.access.model import Account, ApiToken
from registry.kit import migrate
from registry.kit.db import Database
from registry.kit.migrate import SchemaState
from registry.packages import moves
from registry.packages.errors import AliasMoved
from registry.packages.model import Package, PackageEvent
from registry.usage import service as usage
from registry.usage.model import Category
from support.packages import a_version, an_actor
from support.postgres import fresh_postgres
from support.starting import start, wait_for_each_other

MIGRATIONS = Path(__file__).parents[2] / "migrations"
THREADS, CALLS = 32, 50
SERVERS, ROUNDS = 4, 20
PATIENCE_S = 300
"""SQLite serves writers in no order, so one of 32 may wait for all that the others do."""


@contextmanager
def fresh_url(kind: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """Of an empty database."""
    if kind == "sqlite":
        folder.mkdir(exist_ok=True)
        yield f"sqlite+aiosqlite:///{folder}/home.db"
        return
    with fresh_postgres(request.getfixturevalue("postgres")) as url:
        yield url.replace("postgresql://", "postgresql+psycopg://")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """With the schema of the migrations."""
    with fresh_url(request.param, request, tmp_path) as url:
        asyncio.run(migrate.ensure(url, MIGRATIONS))
        yield url


async def prepared(url: str) -> Actor:
    """With one version, at which `prod` points."""
    database = Database.connect(url)
    async with database.begin() as db:
        actor = await an_actor(db)
        await a_version(db, actor, "busy")
        await moves.point(db, actor, "busy", "prod", version=1, expected=None)
    await database.close()
    return actor


async def mixed_calls(url: str, actor: Actor, thread: int) -> int:
    """Register, meter, move an alias, in turn; says how often the alias moved."""
    database, moved = Database.connect(url, busy_timeout_s=PATIENCE_S), 0
    for call in range(CALLS):
        match call % 3:
            case 0:
                async with database.begin() as db:
                    await a_version(db, actor, "busy")
            case 1:
                async with database.begin() as db:
                    await meter(db, actor, operation_id=f"{thread}-{call}")
            case _:
                moved += await move_on(database, actor)
    await database.close()
    return moved


def run_mixed_calls(url: str, actor: Actor, thread: int) -> int:
    return asyncio.run(mixed_calls(url, actor, thread))


async def meter(db: AsyncSession, actor: Actor, *, operation_id: str) -> None:
    await usage.record(
        db,
        account_id=actor.account_id,
        operation_id=operation_id,
        model="tiny",
        counts={Category.train: 7},
    )


async def move_on(database: Database, actor: Actor) -> int:
    """Between the first two versions, from what was just read; 0 if somebody else was faster."""
    async with database.read() as db:
        alias = await moves.require_alias(db, actor, "busy", "prod")
    assert alias.package is not None
    other, expected = 3 - alias.package.version, alias.revision
    try:
        async with database.begin() as db:
            await moves.point(db, actor, "busy", "prod", version=other, expected=expected)
    except AliasMoved:
        return 0
    return 1


async def numbers_of(db: AsyncSession, actor: Actor) -> list[int]:
    found = select(Package.version).where(Package.account_id == actor.account_id)
    return sorted(await db.scalars(found))


def test_32_threads_of_mixed_calls_all_succeed_and_add_up(url: str) -> None:
    actor = asyncio.run(prepared(url))
    with ThreadPoolExecutor(THREADS) as threads:
        loops = [threads.submit(run_mixed_calls, url, actor, n) for n in range(THREADS)]
        moved = sum(loop.result() for loop in loops)

    async def check() -> None:
        database = Database.connect(url)
        async with database.read() as db:
            assert await numbers_of(db, actor) == list(range(1, 1 + 1 + THREADS * 17))
            assert (await usage.totals(db, actor))[Category.train] == THREADS * 17 * 7
            alias = await moves.require_alias(db, actor, "busy", "prod")
            assert (alias.revision, moved > 0) == (1 + moved, True)
            events = await db.scalar(select(func.count()).select_from(PackageEvent))
            assert events == 1 + moved
        await database.close()

    asyncio.run(check())


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_four_servers_that_start_at_once_make_one_schema_and_one_admin(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    processes = multiprocessing.get_context("spawn")
    together = processes.Barrier(SERVERS)
    with ProcessPoolExecutor(
        SERVERS, processes, initializer=wait_for_each_other, initargs=(together,)
    ) as servers:
        for number in range(ROUNDS):
            with fresh_url(kind, request, tmp_path / f"{number}") as url:
                homes = [tmp_path / f"{number}-{each}" for each in range(SERVERS)]
                started = list(servers.map(start, [url] * SERVERS, homes))
                admins = [each for each in started if each.secret]
                assert len(admins) == 1
                assert [each.status for each in admins] == [200]
                assert [each.status for each in started if not each.secret] == [401] * 3
                asyncio.run(check_schema(url))


async def check_schema(url: str) -> None:
    assert (await migrate.status(url, MIGRATIONS)).state == SchemaState.current
    database = Database.connect(url)
    async with database.read() as db:
        for table in (Account, ApiToken):
            assert await db.scalar(select(func.count()).select_from(table)) == 1
    await database.close()
