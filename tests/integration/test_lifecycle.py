"""Compare-and-set and the history on the databases that we have, as the migrations make them."""

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.kit.clock import now
from registry.kit.db import Database
from registry.packages import deletion, holds, lineage, moves, service
from registry.packages.errors import AliasMoved, HoldNotFound, VersionMoved
from registry.packages.model import (
    Approval,
    Package,
    PackageGroup,
    PackageKind,
    PackageTag,
)
from registry.packages.ref import PackageRef
from registry.packages.repository import Wanted
from support.packages import LORA, a_draft, a_version, an_actor, published


@pytest.fixture
def database(migrated: Database) -> Database:
    return migrated


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


async def test_of_many_equal_holds_one_is_placed_and_one_ends(
    database: Database, actor: Actor
) -> None:
    """The history has each once, and the one who let go is told so."""
    ref, holder = PackageRef("demo", 1), replace(actor, token="tok_mine")

    async def hold() -> str:
        async with database.begin() as db:
            return (await holds.hold(db, holder, ref, why="paper")).holder_id

    async def let_go() -> str:
        try:
            async with database.begin() as db:
                await holds.let_go(db, holder, ref)
        except HoldNotFound:
            return "not held"
        return "let go"

    assert len(set(await asyncio.gather(*(hold() for _ in range(8))))) == 1
    assert len(await targets(database, actor)) == 1
    ended = await asyncio.gather(*(let_go() for _ in range(8)))
    assert Counter(ended) == {"let go": 1, "not held": 7}
    assert len(await targets(database, actor)) == 2


async def test_64_parallel_registrations_get_distinct_consecutive_numbers(
    database: Database, actor: Actor
) -> None:
    async def one() -> int:
        async with database.begin() as db:
            return (await published(db, actor, "demo", a_draft(actor, "demo"))).version

    assert sorted(await asyncio.gather(*(one() for _ in range(64)))) == list(range(3, 67))


async def fill(db: AsyncSession, actor: Actor, *, first: int, count: int) -> None:
    """Rows of a group, without their files; every fifth is a state, every seventh is tagged."""
    group = await service.ensure_group(db, actor, "large")
    numbers = range(first, first + count)
    rows = [
        {
            **{"id": f"pkg_{n}", "account_id": actor.account_id, "group_id": group.id},
            **{"version": n, "kind": PackageKind.adapter if n % 5 else PackageKind.state},
            **{"prefix": "", "digest": "", "size": 0, "base_model": "tiny", "base_digest": ""},
            **{"lora": dict(LORA), "step": n, "metrics": {}, "description": f"run {n}"},
            **{"user_metadata": {}, "usage": {}},
        }
        for n in numbers
    ]
    await db.execute(insert(Package), rows)
    tag = {"group_id": group.id, "tag": "seventh"}
    tags = [{"package_id": f"pkg_{n}", "version": n, **tag} for n in numbers if n % 7 == 0]
    await db.execute(insert(PackageTag), tags)


async def remove(db: AsyncSession, actor: Actor, numbers: range) -> None:
    for number in numbers:
        await deletion.delete(db, actor, PackageRef("large", number), grace=timedelta(days=7))


@pytest.mark.parametrize(
    ("wanted", "every"),
    [
        (Wanted(), 1),
        (Wanted(kind=PackageKind.state), 5),
        (Wanted(tag="seventh"), 7),
        (Wanted(kind=PackageKind.state, tag="seventh", text="RUN"), 35),
    ],
)
async def test_pages_show_every_survivor_once_while_rows_come_and_go(
    database: Database, actor: Actor, wanted: Wanted, every: int
) -> None:
    async with database.begin() as db:
        await fill(db, actor, first=1, count=1205)
    seen: list[int] = []
    cursor, limit = None, max(2, 100 // every)
    while cursor is not None or not seen:
        async with database.read() as db:
            page = await service.versions(
                db, actor, "large", wanted=wanted, limit=limit, cursor=cursor
            )
        if not seen:
            async with database.begin() as db:
                await fill(db, actor, first=1206, count=50)
                await remove(db, actor, range(601, 621))
        seen += [package.version for package in page.items]
        cursor = page.next_cursor
    survivors = [n for n in range(1205, 0, -1) if n % every == 0 and n not in range(601, 621)]
    assert seen == survivors


async def test_times_grow_with_numbers_whatever_the_clock_of_a_server_says(
    database: Database, actor: Actor
) -> None:
    ahead = now() + timedelta(hours=1)
    async with database.begin() as db:
        await db.execute(update(PackageGroup).values(last_version_at=ahead))
        for _ in range(2):
            await a_version(db, actor, kind=PackageKind.state)
    for wanted, numbers in (
        (Wanted(created_before=ahead), [2, 1]),
        (Wanted(created_after=ahead), [4, 3]),
        (Wanted(created_after=ahead, kind=PackageKind.state), [4, 3]),
        (Wanted(created_after=ahead + timedelta(seconds=1)), []),
        (Wanted(created_before=ahead - timedelta(days=1)), []),
        (Wanted(created_before=ahead + timedelta(seconds=1)), [4, 3, 2, 1]),
    ):
        async with database.read() as db:
            page = await service.versions(db, actor, "demo", wanted=wanted)
        assert [package.version for package in page.items] == numbers, wanted


async def test_text_is_plain_and_of_any_case(database: Database, actor: Actor) -> None:
    async with database.begin() as db:
        await a_version(db, actor, description="50% of a Long_Run")
        for text, found in (("50% OF", 1), ("long_run", 1), ("long-run", 0), ("5_%", 0)):
            page = await service.versions(db, actor, "demo", wanted=Wanted(text=text))
            assert len(page.items) == found, text


async def test_lineage_is_walked_both_ways(database: Database, actor: Actor) -> None:
    async with database.begin() as db:
        one = await a_version(db, actor, "old")
        two = await a_version(db, actor, "new", parent_id=one.id)
        for group in ("new", "other"):
            await a_version(db, actor, group, parent_id=two.id)
    async with database.read() as db:
        found = await lineage.lineage(db, actor, PackageRef("new", 1))
    assert [package.ref for package in found.nodes] == ["old@1", "new@1", "new@2", "other@1"]
