"""Events are told of what was committed, in order, and of nothing else."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from registry.access.actor import Actor
from registry.artifacts.memory import MemoryBlobStore
from registry.deployments import moves as deployer
from registry.deployments import service as deployments
from registry.events import service
from registry.events.errors import EventNotFound
from registry.events.model import Event, EventType
from registry.kit.db import Database
from registry.packages import deletion, moves
from registry.packages.model import Approval, Stage
from registry.packages.ref import PackageRef
from support.merged import member, publish
from support.packages import a_version, an_actor

ONE = PackageRef("demo", 1)


async def told(database: Database, actor: Actor, **wanted: Any) -> list[Event]:
    """What is listed once the courier has published."""
    async with database.begin() as db:
        await service.publish(db)
        return list((await service.events(db, actor, **wanted)).items)


async def test_each_move_of_a_version_is_told_in_order(database: Database) -> None:
    async with database.begin() as db:
        actor = await an_actor(db)
        package = await a_version(db, actor)
        await moves.decide(db, actor, ONE, approval=Approval.approved, expected=1, why="good")
        await moves.edit(db, actor, ONE, {"stage": Stage.staging}, expected=2, why="")
        await moves.point(db, actor, "demo", "prod", version=1, expected=None)
        await moves.unpoint(db, actor, "demo", "prod", expected=1, why="over")
    found = await told(database, actor)
    assert [(event.number, event.type) for event in found] == [
        (1, "version.registered"),
        (2, "version.approval"),
        (3, "version.stage"),
        (4, "alias.moved"),
        (5, "alias.removed"),
    ]
    assert {event.data["digest"] for event in found} == {package.digest}
    approval, alias = found[1].data, found[3].data
    assert (approval["from"], approval["to"], approval["why"]) == ("pending", "approved", "good")
    assert (alias["alias"], alias["from"], alias["to"]) == ("prod", None, "demo@1")


async def test_the_end_of_a_version_and_its_return_are_told(database: Database) -> None:
    async with database.begin() as db:
        actor = await an_actor(db)
        await a_version(db, actor)
        await deletion.delete(db, actor, ONE, grace=timedelta(days=1), why="old")
        await deletion.restore(db, actor, ONE, expected=2)
        await deletion.delete(db, actor, ONE, grace=timedelta(0))
        await deletion.begin_purge(db, actor, ONE, found=2)
        await deletion.finish_purge(db, actor, ONE, by=deletion.KEEPER)
    found = (await told(database, actor))[1:]
    kinds = [event.type.removeprefix("version.") for event in found]
    assert kinds == ["deleted", "restored", "deleted", "purged"]
    assert found[0].data["why"] == "old"
    assert found[3].data["by"] == {"role": "keeper", "token": None}


async def test_a_change_that_is_rolled_back_tells_nothing(database: Database) -> None:
    async with database.begin() as db:
        actor = await an_actor(db)

    async def undone() -> None:
        async with database.begin() as db:
            await a_version(db, actor)
            await moves.point(db, actor, "demo", "prod", version=1, expected=None)
            raise RuntimeError("undone")

    with pytest.raises(RuntimeError, match="undone"):
        await undone()
    assert await told(database, actor) == []
    async with database.read() as db:
        assert (await db.scalars(select(Event))).all() == []


async def test_a_deployment_tells_who_has_the_traffic(database: Database) -> None:
    async with database.begin() as db:
        actor, store = await member(db), MemoryBlobStore()
        for _ in range(2):
            await publish(db, store, actor)
        for version in (1, 2):
            ref = PackageRef("facts", version)
            standing = await deployments.promote(db, actor, name="live", ref=ref)
            assert standing.starting is not None
            await deployer.activate(db, standing.starting, address=f"http://127.0.0.1:{version}")
        standing = await deployments.rollback(db, actor, name="live")
        assert standing.starting is not None
        await deployer.fail(db, standing.starting, reason="no memory")
    found = [event for event in await told(database, actor) if "deployment" in event.type]
    assert [(e.type, e.data["from"], e.data["to"], e.data["why"]) for e in found] == [
        ("deployment.activated", None, "facts@1", ""),
        ("deployment.activated", "facts@1", "facts@2", ""),
        ("deployment.rolled_back", "facts@2", "facts@1", ""),
        ("deployment.failed", None, "facts@1", "no memory"),
    ]


async def test_a_reader_goes_on_after_the_event_it_saw_last(database: Database) -> None:
    async with database.begin() as db:
        actor = await an_actor(db)
        for _ in range(5):
            await a_version(db, actor)
    first = await told(database, actor, limit=2)
    rest = await told(database, actor, after=first[-1].id)
    assert [event.data["version"] for event in [*first, *rest]] == [1, 2, 3, 4, 5]
    async with database.read() as db:
        page = await service.events(db, actor, limit=3)
        more = await service.events(db, actor, limit=3, cursor=page.next_cursor)
    assert [event.number for event in more.items] == [4, 5]


async def test_an_event_of_another_account_is_unknown(database: Database) -> None:
    async with database.begin() as db:
        alice, bob = await an_actor(db), await an_actor(db, "bob")
        await a_version(db, alice)
    (hers,) = await told(database, alice, kind=EventType.version_registered)
    assert await told(database, bob) == []
    with pytest.raises(EventNotFound):
        await told(database, bob, after=hers.id)
