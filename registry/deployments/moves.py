"""What the deployer does to the rows: the route moves here, and only by compare-and-set."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor, Role
from registry.deployments.model import (
    DeploymentEvent,
    DeploymentRevision,
    EventKind,
    RevisionStatus,
)
from registry.deployments.repository import LiveRevisions
from registry.deployments.telling import tell
from registry.events.model import EventType
from registry.kit.clock import now
from registry.packages import holds
from registry.packages.errors import ApprovalMissing, VersionRejected
from registry.packages.model import HolderKind

DEPLOYER = "deployer"


async def live(db: AsyncSession) -> Sequence[DeploymentRevision]:
    return await LiveRevisions(db).all()


async def forget_processes(db: AsyncSession) -> None:
    """No address written by an earlier run of the service is trusted."""
    for revision in await LiveRevisions(db).forget_addresses():
        await _release(db, revision.account_id, revision.id)


async def activate(db: AsyncSession, revision: DeploymentRevision, *, address: str) -> bool:
    """Lead the traffic to a healthy revision, and keep the one before it warm.

    False, and nothing moves, where the revision was withdrawn while it started, or its version
    lost the approval that it was promoted with.
    """
    rows = LiveRevisions(db)
    deployment = await rows.deployment(revision.deployment_id)
    try:
        (await rows.package(revision)).require_approval()
    except (VersionRejected, ApprovalMissing) as error:
        await fail(db, revision, reason=error.message)
        return False
    old, oldest = deployment.served_revision_id, deployment.previous_revision_id
    starting, active, warm = RevisionStatus.starting, RevisionStatus.active, RevisionStatus.warm
    if not await rows.move(revision.id, starting, active, address=address):
        return False
    if not await rows.switch(deployment, to=revision.id):
        raise RuntimeError(f"the route of {deployment.name} moved while it was locked")
    before = await rows.revision(old)
    if before is not None:
        await rows.move(before.id, active, warm, address=before.address)
    if oldest is not None:
        await rows.move(oldest, warm, RevisionStatus.stopped, address=None)
        await _release(db, revision.account_id, oldest)
    activated = await rows.revision(revision.id)
    if activated is not None:
        activated.ready_at = now()
    rows.add(_event(EventKind.activate, revision, source=before))
    tell(
        db,
        deployment,
        EventType.deployment_activated,
        to=revision,
        source=before.ref if before else None,
    )
    return True


async def fail(db: AsyncSession, revision: DeploymentRevision, *, reason: str) -> None:
    """The revision did not start: traffic stays where it is."""
    rows = LiveRevisions(db)
    deployment = await rows.deployment(revision.deployment_id)
    failed = RevisionStatus.failed
    if not await rows.move(revision.id, RevisionStatus.starting, failed, address=None):
        return
    await _release(db, revision.account_id, revision.id)
    await _explain(rows, revision.id, reason)
    rows.add(_event(EventKind.fail, revision, why=reason))
    tell(db, deployment, EventType.deployment_failed, to=revision, why=reason)


async def lose(db: AsyncSession, revision: DeploymentRevision, *, reason: str) -> None:
    """The process that served a revision is gone: its name answers "is starting" for now."""
    rows = LiveRevisions(db)
    active = RevisionStatus.active
    if await rows.move(revision.id, active, active, address=None):
        await _explain(rows, revision.id, reason)


async def restart(db: AsyncSession, revision: DeploymentRevision, *, address: str) -> bool:
    """The served revision has a process again. False where it is no longer the served one."""
    rows = LiveRevisions(db)
    active = RevisionStatus.active
    if not await rows.move(revision.id, active, active, address=address):
        return False
    await _explain(rows, revision.id, None)
    rows.add(_event(EventKind.restart, revision, source=revision))
    return True


async def stop(db: AsyncSession, revision: DeploymentRevision) -> None:
    """A warm revision that has no process left is not warm."""
    rows = LiveRevisions(db)
    if await rows.move(revision.id, RevisionStatus.warm, RevisionStatus.stopped, address=None):
        await _release(db, revision.account_id, revision.id)


async def _release(db: AsyncSession, account_id: str, revision_id: str) -> None:
    """Nothing serves the version under this revision any more."""
    actor = Actor(account_id, Role.member)
    await holds.release(db, actor, holder_kind=HolderKind.deployment, holder_id=revision_id)


async def _explain(rows: LiveRevisions, revision_id: str, error: str | None) -> None:
    row = await rows.revision(revision_id)
    if row is not None:
        row.error = error


def _event(
    kind: EventKind,
    to: DeploymentRevision,
    *,
    source: DeploymentRevision | None = None,
    why: str = "",
) -> DeploymentEvent:
    return DeploymentEvent(
        account_id=to.account_id,
        deployment_id=to.deployment_id,
        kind=kind,
        actor=DEPLOYER,
        source=source.ref if source else None,
        target=to.ref,
        digest=to.digest,
        why=why,
    )
