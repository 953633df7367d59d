from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.kit.ids import new_id
from registry.usage import service
from registry.usage.errors import InvalidUsage
from registry.usage.model import Category, UsageEvent
from registry.usage.service import GroupBy, Width
from support.packages import an_actor

MONDAY = datetime(2030, 1, 7, tzinfo=UTC)


async def used(db: AsyncSession, actor: Actor, operation: str, **counts: int) -> None:
    session = operation.split("/")[0]
    await service.record(
        db,
        account_id=actor.account_id,
        operation_id=operation,
        model="tiny",
        counts={Category(name): tokens for name, tokens in counts.items()},
        session_id=session,
    )


def event(actor: Actor, at: datetime, tokens: int, *, model: str = "tiny") -> UsageEvent:
    return UsageEvent(
        id=new_id("use"),
        account_id=actor.account_id,
        operation_id=new_id("op"),
        category=Category.train,
        tokens=tokens,
        session_id="s1",
        model=model,
        created_at=at,
    )


async def test_totals_add_up_by_category_session_and_account(db: AsyncSession) -> None:
    alice, bob = await an_actor(db, "alice"), await an_actor(db, "bob")
    await used(db, alice, "s1/1", train=100)
    await used(db, alice, "s1/2", prefill=3, sample=5)
    await used(db, alice, "s2/1", train=2**40, cached_prefill=1)
    await used(db, bob, "s1/1", train=7)
    assert await service.totals(db, alice) == {
        "train": 2**40 + 100,
        "prefill": 3,
        "cached_prefill": 1,
        "sample": 5,
    }
    assert (await service.totals(db, alice, session_id="s1"))[Category.train] == 100
    sessions = await service.by_session(db, alice)
    assert {key: sum(used.values()) for key, used in sessions.items()} == {
        "s1": 108,
        "s2": 2**40 + 1,
    }


async def test_an_operation_is_metered_once(db: AsyncSession) -> None:
    actor = await an_actor(db)
    for _ in range(2):
        await used(db, actor, "s1/1", train=100)
    assert (await service.totals(db, actor))[Category.train] == 100


async def test_nothing_used_is_no_row(db: AsyncSession) -> None:
    actor = await an_actor(db)
    await used(db, actor, "s1/1", train=0)
    assert await service.by_session(db, actor) == {}
    assert sum((await service.totals(db, actor)).values()) == 0


async def test_a_negative_count_is_refused(db: AsyncSession) -> None:
    with pytest.raises(InvalidUsage, match="negative"):
        await used(db, await an_actor(db), "s1/1", train=-1)


async def test_buckets_are_days_of_utc_and_show_the_empty_ones(db: AsyncSession) -> None:
    actor = await an_actor(db)
    for hours, tokens in ((-1, 1), (0, 10), (23.999, 100), (48, 1000), (72, 10000)):
        db.add(event(actor, MONDAY + timedelta(hours=hours), tokens))
    await db.flush()
    page = await service.buckets(
        db, actor, start=MONDAY + timedelta(hours=5), end=MONDAY + timedelta(days=3)
    )
    sums = [[group.tokens[Category.train] for group in bucket.groups] for bucket in page.items]
    assert sums == [[110], [], [1000]]
    assert page.items[0].start == MONDAY
    assert page.items[0].groups[0].requests == 2
    assert page.next_cursor is None


async def test_buckets_are_grouped_by_model(db: AsyncSession) -> None:
    actor = await an_actor(db)
    db.add_all([event(actor, MONDAY, 1, model="b"), event(actor, MONDAY, 2, model="a")])
    await db.flush()
    page = await service.buckets(
        db, actor, start=MONDAY, end=MONDAY + timedelta(days=1), group_by=GroupBy.model
    )
    groups = page.items[0].groups
    assert [(group.key, group.tokens[Category.train]) for group in groups] == [("a", 2), ("b", 1)]


async def test_pages_of_buckets_join_without_overlap(db: AsyncSession) -> None:
    actor = await an_actor(db)
    db.add_all([event(actor, MONDAY + timedelta(hours=hour), 1) for hour in range(7)])
    await db.flush()
    sizes: list[int] = []
    cursor, total = None, 0
    while cursor is not None or not sizes:
        page = await service.buckets(
            db,
            actor,
            start=MONDAY,
            end=MONDAY + timedelta(hours=7),
            width=Width.hour,
            limit=3,
            cursor=cursor,
        )
        sizes.append(len(page.items))
        total += sum(bucket.groups[0].tokens[Category.train] for bucket in page.items)
        cursor = page.next_cursor
    assert (sizes, total) == ([3, 3, 1], 7)


async def test_an_end_before_the_start_is_refused(db: AsyncSession) -> None:
    with pytest.raises(InvalidUsage, match="end"):
        await service.buckets(db, await an_actor(db), start=MONDAY, end=MONDAY)
