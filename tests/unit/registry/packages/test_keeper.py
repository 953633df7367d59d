"""What the keeper does in one look around, at a moment that the test names."""

from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from registry.access.actor import Actor
from registry.artifacts.errors import StoreRefused, StoreUnavailable
from registry.artifacts.memory import MemoryBlobStore
from registry.kit.clock import now
from registry.kit.db import Database
from registry.packages import deletion, holds, moves, retention, service
from registry.packages.errors import PurgeBegun
from registry.packages.keeper import Keeper, Round
from registry.packages.model import HolderKind, Package
from registry.packages.ref import PackageRef
from registry.packages.retention import Policy
from support.merged import member, publish

GRACE = timedelta(days=7)
DAY = timedelta(days=1)
BYTES = 11  # of each version: three small files


class Store(MemoryBlobStore):
    """Refuses what a test wants refused."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[str, Exception] = {}

    async def delete_folder(self, prefix: str) -> int:
        if prefix in self.refused:
            raise self.refused[prefix]
        return await super().delete_folder(prefix)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def keeper(database: Database, store: Store) -> Keeper:
    return Keeper(database, store, grace=GRACE)


@pytest.fixture
async def actor(database: Database, store: Store) -> Actor:
    """With the versions 1 to 3 of the group `facts`."""
    async with database.begin() as db:
        actor = await member(db)
        for _ in range(3):
            await publish(db, store, actor)
    return actor


async def delete(database: Database, actor: Actor, *versions: int) -> None:
    async with database.begin() as db:
        for version in versions:
            await deletion.delete(db, actor, PackageRef("facts", version), grace=GRACE)


async def find(database: Database, actor: Actor, version: int) -> Package:
    async with database.read() as db:
        return await service.require_version(db, actor, PackageRef("facts", version))


async def expire(database: Database, actor: Actor, version: int) -> None:
    changes: moves.Changes = {"expires_at": now() + DAY}
    async with database.begin() as db:
        await moves.edit(db, actor, PackageRef("facts", version), changes, expected=1, why="")


async def test_a_tombstone_is_purged_when_its_grace_is_over_and_not_before(
    database: Database, actor: Actor, keeper: Keeper, store: Store
) -> None:
    await delete(database, actor, 1, 2)
    assert await keeper.round(at=now() + GRACE - DAY) == Round()
    assert len(await store.keys("")) == 9
    assert await keeper.round(at=now() + GRACE) == Round(purged=2, freed=2 * BYTES)
    assert len(await store.keys("")) == 3
    found = await find(database, actor, 1)
    assert (found.purged_at is None, found.purge_at, found.freed) == (False, None, BYTES)
    assert await keeper.round(at=now() + GRACE) == Round()


async def test_the_history_names_the_keeper(
    database: Database, actor: Actor, keeper: Keeper
) -> None:
    await expire(database, actor, 1)
    assert await keeper.round(at=now() + 2 * DAY) == Round(expired=1)
    await keeper.round(at=now() + 2 * DAY + GRACE)
    async with database.read() as db:
        events = (await moves.history(db, actor, "facts")).items
    assert [(event.kind, event.role, event.token) for event in events] == [
        ("purged", "keeper", None),
        ("deleted", "keeper", None),
    ]
    assert events[1].why.startswith("expired at 2")
    assert (await find(database, actor, 1)).deleted_by == "keeper"


async def test_what_has_expired_goes_unless_it_is_held(
    database: Database, actor: Actor, keeper: Keeper
) -> None:
    for version in (1, 2, 3):
        await expire(database, actor, version)
    held = await find(database, actor, 1)
    async with database.begin() as db:
        await holds.place(db, actor, held, holder_kind=HolderKind.person, holder_id="tok_1")
        await moves.point(db, actor, "facts", "prod", version=2, expected=None)
    assert await keeper.round(at=now()) == Round()
    assert await keeper.round(at=now() + DAY) == Round(expired=1)
    states = [(await find(database, actor, each)).deleted_at is None for each in (1, 2, 3)]
    assert states == [True, True, False]
    async with database.begin() as db:
        await holds.release(db, actor, holder_kind=HolderKind.person, holder_id="tok_1")
    assert await keeper.round(at=now() + DAY) == Round(expired=1)


async def test_a_restored_version_does_not_expire_again(
    database: Database, actor: Actor, keeper: Keeper
) -> None:
    async with database.begin() as db:
        changes: moves.Changes = {"expires_at": now() - DAY}
        await moves.edit(db, actor, PackageRef("facts", 1), changes, expected=1, why="")
    assert await keeper.round(at=now()) == Round(expired=1)
    async with database.begin() as db:
        await deletion.restore(db, actor, PackageRef("facts", 1), expected=3)
    assert await keeper.round(at=now()) == Round()
    assert (await find(database, actor, 1)).expires_at is None


async def test_policies_are_applied_at_once_and_then_hourly(
    database: Database, actor: Actor, keeper: Keeper, store: Store
) -> None:
    async with database.begin() as db:
        await retention.set_policy(db, actor, "facts", Policy(keep_last=2))
    at = now()
    assert await keeper.round(at=at) == Round(removed=1)
    async with database.begin() as db:
        await publish(db, store, actor)
    assert await keeper.round(at=at + timedelta(minutes=59)) == Round()
    assert await keeper.round(at=at + timedelta(minutes=60)) == Round(removed=1)
    assert (await find(database, actor, 2)).deleted_why == "retention: not kept by: the last 2"


async def test_one_version_that_fails_keeps_no_other_from_being_purged(
    database: Database, actor: Actor, keeper: Keeper, store: Store
) -> None:
    await delete(database, actor, 1, 2)
    prefix = (await find(database, actor, 1)).prefix
    store.refused[prefix] = StoreRefused("AccessDenied", "not yours")
    with capture_logs() as logs:
        assert await keeper.round(at=now() + GRACE) == Round(purged=1, freed=BYTES, failed=1)
    assert [(line["event"], line["about"]) for line in logs] == [("keeper.failed", "facts@1")]
    store.refused.clear()
    assert await keeper.round(at=now() + GRACE) == Round()
    later = now() + GRACE + deletion.PURGE_AGAIN_AFTER
    assert await keeper.round(at=later) == Round(purged=1, freed=BYTES)


async def test_a_store_that_is_away_ends_the_round(
    database: Database, actor: Actor, keeper: Keeper, store: Store
) -> None:
    await delete(database, actor, 1, 2)
    store.refused[(await find(database, actor, 1)).prefix] = StoreUnavailable("it is away")
    with pytest.raises(StoreUnavailable):
        await keeper.round(at=now() + GRACE)
    assert len(await store.keys("")) == 9


async def test_a_purge_that_was_begun_cannot_be_undone(
    database: Database, actor: Actor, keeper: Keeper, store: Store
) -> None:
    await delete(database, actor, 1)
    store.refused[(await find(database, actor, 1)).prefix] = StoreUnavailable("it is away")
    with pytest.raises(StoreUnavailable):
        await keeper.round(at=now() + GRACE)
    with pytest.raises(PurgeBegun, match=r"facts@1 cannot be restored"):
        async with database.begin() as db:
            await deletion.restore(db, actor, PackageRef("facts", 1), expected=2)
