"""A deployment holds the version that starts, the one that is served and the one kept warm."""

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.artifacts.memory import MemoryBlobStore
from registry.deployments import moves, service
from registry.deployments.model import Standing
from registry.packages import holds
from registry.packages.ref import PackageRef
from support.merged import member, publish


@pytest.fixture
async def actor(db: AsyncSession) -> Actor:
    """Of an account with three merged versions of the group `facts`."""
    actor, store = await member(db), MemoryBlobStore()
    for _ in range(3):
        await publish(db, store, actor)
    return actor


async def promote(db: AsyncSession, actor: Actor, version: int) -> Standing:
    return await service.promote(db, actor, name="live", ref=PackageRef("facts", version))


async def come_up(db: AsyncSession, actor: Actor, standing: Standing) -> None:
    assert standing.starting is not None
    assert await moves.activate(db, standing.starting, address="http://127.0.0.1:1")


async def held(db: AsyncSession, actor: Actor) -> list[int]:
    """The versions that the deployment `live` holds."""
    found = []
    for version in (1, 2, 3):
        _, each = await holds.holds(db, actor, PackageRef("facts", version))
        assert {str(hold) for hold in each} <= {"deployment live"}
        found += [version] if each else []
    return found


async def test_a_version_that_starts_is_held_and_one_that_failed_is_not(
    db: AsyncSession, actor: Actor
) -> None:
    standing = await promote(db, actor, 1)
    assert await held(db, actor) == [1]
    assert standing.starting is not None
    await moves.fail(db, standing.starting, reason="out of memory")
    assert await held(db, actor) == []


async def test_the_served_and_the_warm_are_held_and_older_ones_are_not(
    db: AsyncSession, actor: Actor
) -> None:
    kept = []
    for version in (1, 2, 3):
        await come_up(db, actor, await promote(db, actor, version))
        kept.append(await held(db, actor))
    assert kept == [[1], [1, 2], [2, 3]]


async def test_a_withdrawn_promotion_lets_go(db: AsyncSession, actor: Actor) -> None:
    await come_up(db, actor, await promote(db, actor, 1))
    await promote(db, actor, 2)
    await promote(db, actor, 3)
    assert await held(db, actor) == [1, 3]
    await service.rollback(db, actor, name="live")
    assert await held(db, actor) == [1]


async def test_after_a_rollback_both_are_held_however_often_it_is_done(
    db: AsyncSession, actor: Actor
) -> None:
    for version in (1, 2):
        await come_up(db, actor, await promote(db, actor, version))
    for _ in range(3):
        await come_up(db, actor, await service.rollback(db, actor, name="live"))
        assert await held(db, actor) == [1, 2]


async def test_a_restart_of_the_service_keeps_only_the_served_one(
    db: AsyncSession, actor: Actor
) -> None:
    for version in (1, 2):
        await come_up(db, actor, await promote(db, actor, version))
    await moves.forget_processes(db)
    assert await held(db, actor) == [2]


async def test_a_warm_process_that_died_lets_go(db: AsyncSession, actor: Actor) -> None:
    for version in (1, 2):
        await come_up(db, actor, await promote(db, actor, version))
    (warm,) = [each for each in await moves.live(db) if each.status == "warm"]
    await moves.stop(db, warm)
    assert await held(db, actor) == [2]
