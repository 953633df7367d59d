"""Which versions a deployment may serve, as their approval and the group's rule say."""

from dataclasses import replace

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor, Role
from registry.artifacts.memory import MemoryBlobStore
from registry.deployments import moves, service
from registry.deployments.model import Standing
from registry.packages import moves as decisions
from registry.packages import rules
from registry.packages.errors import ApprovalMissing, VersionRejected
from registry.packages.model import Approval
from registry.packages.ref import PackageRef
from support.merged import member, publish

V1, V2 = PackageRef("facts", 1), PackageRef("facts", 2)


@pytest.fixture
async def actor(db: AsyncSession) -> Actor:
    """Of an account with two merged versions of the group `facts`."""
    actor, store = await member(db), MemoryBlobStore()
    for _ in range(2):
        await publish(db, store, actor)
    return actor


async def require_approval(db: AsyncSession, actor: Actor) -> None:
    admin = replace(actor, role=Role.admin)
    await rules.edit_group(db, admin, "facts", {"require_approval": True}, expected=1)


async def decide(db: AsyncSession, actor: Actor, ref: PackageRef, approval: Approval) -> None:
    package = await decisions.locked(db, actor, ref)
    revision = package.revision
    await decisions.decide(db, actor, ref, approval=approval, expected=revision, why="")


async def promote(db: AsyncSession, actor: Actor, ref: PackageRef) -> Standing:
    return await service.promote(db, actor, name="live", ref=ref)


async def come_up(db: AsyncSession, actor: Actor, standing: Standing) -> bool:
    assert standing.starting is not None
    return await moves.activate(db, standing.starting, address="http://127.0.0.1:1")


async def test_a_group_that_requires_approval_promotes_approved_versions_only(
    db: AsyncSession, actor: Actor
) -> None:
    await require_approval(db, actor)
    with pytest.raises(ApprovalMissing, match=r"facts@1 is pending.* modelyard approve facts@1"):
        await promote(db, actor, V1)
    await decide(db, actor, V1, Approval.approved)
    assert await come_up(db, actor, await promote(db, actor, V1))
    await decide(db, actor, V2, Approval.rejected)
    with pytest.raises(VersionRejected):
        await promote(db, actor, V2)


async def test_a_version_that_is_rejected_while_it_starts_gets_no_traffic(
    db: AsyncSession, actor: Actor
) -> None:
    assert await come_up(db, actor, await promote(db, actor, V1))
    starting = await promote(db, actor, V2)
    await decide(db, actor, V2, Approval.rejected)
    assert not await come_up(db, actor, starting)
    standing = await service.require_deployment(db, actor, "live")
    assert standing.served is not None
    assert standing.served.ref == "facts@1"
    assert standing.pending is not None
    assert "facts@2 is rejected" in str(standing.pending.error)


async def test_a_version_that_is_rejected_while_it_is_served_stays_and_that_is_told(
    db: AsyncSession, actor: Actor
) -> None:
    assert await come_up(db, actor, await promote(db, actor, V1))
    await decide(db, actor, V1, Approval.rejected)
    standing = await service.require_deployment(db, actor, "live")
    assert standing.served is not None
    assert (standing.served.ref, standing.approval) == ("facts@1", "rejected")


async def test_nothing_is_rolled_back_to_a_version_without_the_approval_it_needs(
    db: AsyncSession, actor: Actor
) -> None:
    for ref in (V1, V2):
        assert await come_up(db, actor, await promote(db, actor, ref))
    await require_approval(db, actor)
    with pytest.raises(ApprovalMissing):
        await service.rollback(db, actor, name="live")
    await decide(db, actor, V1, Approval.rejected)
    with pytest.raises(VersionRejected):
        await service.rollback(db, actor, name="live")
