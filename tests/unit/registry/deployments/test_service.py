"""What promote and rollback ask for. Who carries it out is played by the functions of `moves`."""

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.artifacts.memory import MemoryBlobStore
from registry.deployments import moves, service
from registry.deployments.errors import (
    DeploymentFailed,
    DeploymentNotFound,
    DeploymentStarting,
    InvalidDeploymentName,
    NothingToRollBack,
)
from registry.deployments.model import DeploymentStatus, Standing
from registry.packages.errors import NotPromotable, VersionNotFound, VersionRejected
from registry.packages.model import Approval, PackageKind
from registry.packages.ref import PackageRef
from support.merged import member, publish

V1, V2, V3 = (PackageRef("facts", number) for number in (1, 2, 3))


@pytest.fixture
async def actor(db: AsyncSession) -> Actor:
    """Of an account with three merged versions of the group `facts`."""
    actor, store = await member(db), MemoryBlobStore()
    for _ in range(3):
        await publish(db, store, actor)
    return actor


async def serve(db: AsyncSession, actor: Actor, ref: PackageRef) -> Standing:
    """Promote, and have the new process come up."""
    standing = await service.promote(db, actor, name="live", ref=ref)
    return await come_up(db, actor, standing)


async def come_up(db: AsyncSession, actor: Actor, standing: Standing) -> Standing:
    assert standing.starting is not None
    number = standing.starting.number
    assert await moves.activate(db, standing.starting, address=f"http://127.0.0.1:{number}")
    return await service.require_deployment(db, actor, "live")


async def test_a_first_promotion_starts_without_traffic(db: AsyncSession, actor: Actor) -> None:
    standing = await service.promote(db, actor, name="live", ref=V1)
    assert standing.status == DeploymentStatus.starting
    assert standing.served is None
    with pytest.raises(DeploymentStarting, match="live is starting"):
        await service.resolve(db, actor, "live")


async def test_the_route_names_the_version_by_its_digest(db: AsyncSession, actor: Actor) -> None:
    standing = await serve(db, actor, V1)
    route = await service.resolve(db, actor, "live")
    assert standing.served is not None
    assert standing.served.digest in route.served_name
    assert (route.ref, route.address, route.base_model) == ("facts@1", "http://127.0.0.1:1", "tiny")


async def test_the_old_version_answers_until_the_new_one_is_healthy(
    db: AsyncSession, actor: Actor
) -> None:
    await serve(db, actor, V1)
    standing = await service.promote(db, actor, name="live", ref=V2)
    assert (await service.resolve(db, actor, "live")).ref == "facts@1"
    await come_up(db, actor, standing)
    assert (await service.resolve(db, actor, "live")).ref == "facts@2"


async def test_only_one_version_stays_warm(db: AsyncSession, actor: Actor) -> None:
    for ref in (V1, V2, V3):
        await serve(db, actor, ref)
    live = {revision.ref: revision.status for revision in await moves.live(db)}
    assert live == {"facts@2": "warm", "facts@3": "active"}


async def test_a_failed_start_leaves_the_traffic_where_it_was(
    db: AsyncSession, actor: Actor
) -> None:
    await serve(db, actor, V1)
    standing = await service.promote(db, actor, name="live", ref=V2)
    assert standing.starting is not None
    await moves.fail(db, standing.starting, reason="out of memory")
    after = await service.require_deployment(db, actor, "live")
    assert after.status == DeploymentStatus.active
    assert after.pending is not None
    assert (after.pending.ref, after.pending.error) == ("facts@2", "out of memory")
    assert after.route().ref == "facts@1"


async def test_a_first_start_that_failed_says_why(db: AsyncSession, actor: Actor) -> None:
    standing = await service.promote(db, actor, name="live", ref=V1)
    assert standing.starting is not None
    await moves.fail(db, standing.starting, reason="out of memory")
    with pytest.raises(DeploymentFailed, match="out of memory"):
        await service.resolve(db, actor, "live")


async def test_a_newer_promotion_supersedes_one_that_starts(db: AsyncSession, actor: Actor) -> None:
    first = (await service.promote(db, actor, name="live", ref=V1)).starting
    await service.promote(db, actor, name="live", ref=V2)
    assert first is not None
    assert (first.status, first.error) == ("failed", "superseded by facts@2")
    assert not await moves.activate(db, first, address="http://127.0.0.1:1")
    assert (await service.require_deployment(db, actor, "live")).served is None


async def test_what_is_served_already_is_not_started_again(db: AsyncSession, actor: Actor) -> None:
    await serve(db, actor, V1)
    await service.promote(db, actor, name="live", ref=V2)
    standing = await service.promote(db, actor, name="live", ref=V1)
    assert standing.starting is None
    assert [revision.ref for revision in await moves.live(db)] == ["facts@1"]


async def test_rollback_and_rollback_again(db: AsyncSession, actor: Actor) -> None:
    await serve(db, actor, V1)
    await serve(db, actor, V2)
    for expected in ("facts@1", "facts@2"):
        standing = await service.rollback(db, actor, name="live")
        await come_up(db, actor, standing)
        assert (await service.resolve(db, actor, "live")).ref == expected


async def test_rollback_withdraws_what_is_not_served_yet(db: AsyncSession, actor: Actor) -> None:
    await serve(db, actor, V1)
    await serve(db, actor, V2)
    await service.promote(db, actor, name="live", ref=V3)
    standing = await service.rollback(db, actor, name="live")
    assert standing.starting is None
    assert standing.route().ref == "facts@2"


async def test_there_may_be_nothing_to_roll_back_to(db: AsyncSession, actor: Actor) -> None:
    with pytest.raises(DeploymentNotFound):
        await service.rollback(db, actor, name="live")
    await serve(db, actor, V1)
    with pytest.raises(NothingToRollBack):
        await service.rollback(db, actor, name="live")


async def test_every_move_is_in_the_history(db: AsyncSession, actor: Actor) -> None:
    await serve(db, actor, V1)
    await serve(db, actor, V2)
    await come_up(db, actor, await service.rollback(db, actor, name="live"))
    events = (await service.history(db, actor, "live")).items
    assert [(event.kind, event.actor, event.source, event.target) for event in events][::-1] == [
        ("promote", "member", None, "facts@1"),
        ("activate", "deployer", None, "facts@1"),
        ("promote", "member", "facts@1", "facts@2"),
        ("activate", "deployer", "facts@1", "facts@2"),
        ("rollback", "member", "facts@2", "facts@1"),
        ("activate", "deployer", "facts@2", "facts@1"),
    ]


async def test_only_merged_versions_that_are_not_rejected(db: AsyncSession, actor: Actor) -> None:
    await publish(db, MemoryBlobStore(), actor, kind=PackageKind.state)
    rejected = await publish(db, MemoryBlobStore(), actor)
    rejected.approval = Approval.rejected
    for number, error in ((4, NotPromotable), (5, VersionRejected), (9, VersionNotFound)):
        with pytest.raises(error):
            await service.promote(db, actor, name="live", ref=PackageRef("facts", number))
    assert (await service.deployments(db, actor)).items == []


async def test_a_name_must_fit_into_a_path(db: AsyncSession, actor: Actor) -> None:
    with pytest.raises(InvalidDeploymentName, match=r"'a/b'"):
        await service.promote(db, actor, name="a/b", ref=V1)


async def test_another_accounts_deployment_is_unknown(db: AsyncSession, actor: Actor) -> None:
    await serve(db, actor, V1)
    stranger = await member(db, account="others")
    with pytest.raises(DeploymentNotFound):
        await service.resolve(db, stranger, "live")
    assert (await service.deployments(db, stranger)).items == []


async def test_addresses_of_an_earlier_run_are_not_trusted(db: AsyncSession, actor: Actor) -> None:
    await serve(db, actor, V1)
    await serve(db, actor, V2)
    await moves.forget_processes(db)
    with pytest.raises(DeploymentStarting):
        await service.resolve(db, actor, "live")
    live = {revision.ref: revision.status for revision in await moves.live(db)}
    assert live == {"facts@2": "active"}
