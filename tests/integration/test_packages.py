"""What only a real database on disk can show: writers side by side, and pages under change."""

import asyncio

from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.kit.db import Database
from registry.packages import service
from registry.packages.model import Package, PackageFile, PackageKind
from registry.packages.repository import Wanted
from support.packages import a_version, an_actor


async def test_parallel_first_uses_make_one_group(database: Database) -> None:
    async with database.begin() as db:
        actor = await an_actor(db)

    async def one() -> str:
        async with database.begin() as db:
            return (await service.ensure_group(db, actor, "new")).id

    assert len(set(await asyncio.gather(*(one() for _ in range(16))))) == 1


async def test_a_number_given_back_by_a_failure_makes_no_version(database: Database) -> None:
    async with database.begin() as db:
        actor = await an_actor(db)
        await a_version(db, actor, "demo")
    try:
        async with database.begin() as db:
            await a_version(db, actor, "demo")
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    async with database.begin() as db:
        await a_version(db, actor, "demo")
        page = await service.versions(db, actor, "demo")
    assert [package.version for package in page.items] == [2, 1]


async def test_pages_show_every_survivor_once_while_rows_come_and_go(db: AsyncSession) -> None:
    actor = await an_actor(db)
    originals = {(await a_version(db, actor)).version for _ in range(65)}
    seen: list[int] = []
    gone: set[int] = set()
    cursor = None
    while cursor is not None or not seen:
        page = await service.versions(db, actor, "demo", limit=10, cursor=cursor)
        seen += [package.version for package in page.items]
        cursor = page.next_cursor
        await a_version(db, actor)
        gone |= await _remove(db, actor, {seen[-1], seen[-1] - 3})
    assert len(seen) == len(set(seen))
    assert originals - gone <= set(seen)


async def test_pages_of_one_kind_hold_only_that_kind(db: AsyncSession) -> None:
    actor = await an_actor(db)
    for kind in (PackageKind.state, PackageKind.adapter, PackageKind.state):
        await a_version(db, actor, kind=kind)
    states = Wanted(kind=PackageKind.state)
    first = await service.versions(db, actor, "demo", wanted=states, limit=1)
    second = await service.versions(
        db, actor, "demo", wanted=states, limit=1, cursor=first.next_cursor
    )
    assert [package.version for package in (*first.items, *second.items)] == [3, 1]
    assert second.next_cursor is None


async def _remove(db: AsyncSession, actor: Actor, versions: set[int]) -> set[int]:
    page = await service.versions(db, actor, "demo", limit=200)
    ids = [package.id for package in page.items if package.version in versions]
    await db.execute(delete(PackageFile).where(PackageFile.package_id.in_(ids)))
    await db.execute(delete(Package).where(Package.id.in_(ids)))
    return versions
