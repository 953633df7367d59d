"""What is being written is known before its first byte, and published or collected, never both."""

import asyncio

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.kit.db import Database
from registry.packages import service, writes
from registry.packages.errors import AlreadyRegistered, InvalidPackage, WriteCollected
from registry.packages.model import PackageDraft, PackageWrite
from support.packages import a_draft, a_version, an_actor


@pytest.fixture
def database(migrated: Database) -> Database:
    return migrated


@pytest.fixture
async def actor(database: Database) -> Actor:
    """With one version in the group `demo`."""
    async with database.begin() as db:
        actor = await an_actor(db)
        await a_version(db, actor)
    return actor


async def begin(database: Database, actor: Actor, holder: str) -> PackageDraft:
    draft = a_draft(actor, "demo")
    paths = [file.path for file in draft.files]
    async with database.begin() as db:
        await writes.begin(db, actor, draft.id, prefix=draft.prefix, paths=paths, holder=holder)
    return draft


async def publish(database: Database, actor: Actor, draft: PackageDraft) -> int | None:
    try:
        async with database.begin() as db:
            package = await service.register(db, actor, group_name="demo", draft=draft)
    except WriteCollected:
        return None
    return package.version


async def give_up(database: Database, actor: Actor, holder: str) -> int:
    async with database.begin() as db:
        return len(await writes.give_up(db, actor, holder))


async def test_what_was_announced_is_published_and_no_longer_announced(
    database: Database, actor: Actor
) -> None:
    draft = await begin(database, actor, "op_1")
    assert await publish(database, actor, draft) == 2
    async with database.read() as db:
        assert await db.get(PackageWrite, draft.id) is None


async def test_what_was_not_announced_is_not_published(database: Database, actor: Actor) -> None:
    assert await publish(database, actor, a_draft(actor, "demo")) is None
    assert await publish(database, actor, await begin(database, actor, "op_1")) == 2


async def test_what_was_given_up_is_never_published(database: Database, actor: Actor) -> None:
    draft = await begin(database, actor, "op_1")
    assert await give_up(database, actor, "op_1") == 1
    assert await publish(database, actor, draft) is None
    with pytest.raises(WriteCollected, match=draft.id):
        async with database.begin() as db:
            await writes.begin(db, actor, draft.id, prefix=draft.prefix, paths=[])


async def test_only_the_later_of_two_tries_can_publish(database: Database, actor: Actor) -> None:
    first, other = await begin(database, actor, "op_1"), await begin(database, actor, "op_2")
    second = await begin(database, actor, "op_1")
    found = [await publish(database, actor, draft) for draft in (first, second, other)]
    assert found == [None, 2, 3]


async def test_saying_again_what_is_written_keeps_it_fresh(db: AsyncSession) -> None:
    actor = await an_actor(db)
    draft = a_draft(actor, "demo")
    once = await writes.begin(db, actor, draft.id, prefix=draft.prefix, paths=["a"])
    before = once.touched_at
    again = await writes.begin(db, actor, draft.id, prefix=draft.prefix, paths=["a", "b"])
    assert again is once
    assert again.touched_at > before
    assert again.keys == [f"{draft.prefix}a", f"{draft.prefix}b"]


async def test_nothing_is_written_where_a_version_lies_or_another_account(
    database: Database, actor: Actor
) -> None:
    async with database.begin() as db:
        bob, version = await an_actor(db, "bob"), await a_version(db, actor)
    with pytest.raises(AlreadyRegistered, match=version.id):
        async with database.begin() as db:
            await writes.begin(db, actor, version.id, prefix=version.prefix, paths=[])
    with pytest.raises(InvalidPackage, match="prefix: "):
        async with database.begin() as db:
            await writes.begin(db, bob, "pkg_1", prefix=version.prefix, paths=[])


async def test_of_a_publication_and_a_collection_one_succeeds(
    database: Database, actor: Actor
) -> None:
    for number in range(20):
        draft = await begin(database, actor, f"op_{number}")
        published, collected = await asyncio.gather(
            publish(database, actor, draft), give_up(database, actor, f"op_{number}")
        )
        assert (published is not None) != (collected == 1)
