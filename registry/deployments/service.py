from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.deployments.errors import (
    DeploymentNotFound,
    InvalidDeploymentName,
)
from registry.deployments.model import (
    Deployment,
    DeploymentEvent,
    DeploymentRevision,
    EventKind,
    RevisionStatus,
    Route,
    Standing,
)
from registry.deployments.repository import DeploymentRepository
from registry.deployments.telling import tell
from registry.events.model import EventType
from registry.kit.clock import now
from registry.kit.ids import new_id
from registry.kit.names import NAME
from registry.kit.pages import Cursors, Page
from registry.packages import holds
from registry.packages import service as packages
from registry.packages.model import HolderKind, Package
from registry.packages.ref import PackageRef, Ref


async def promote(db: AsyncSession, actor: Actor, *, name: str, ref: Ref) -> Standing:
    """Ask for a version to be served; the deployer starts it beside the old and moves the route.

    A promotion that still starts gives way to this one. A version that is served stays as it is.
    """
    package = await _require_servable(db, actor, ref)
    standing = await _ensure(db, actor, name)
    await _withdraw(db, actor, standing, why=f"superseded by {package.ref}")
    if standing.served is None or standing.served.package_id != package.id:
        deployments = DeploymentRepository(db, actor.account_id)
        revision = await _start(db, actor, standing.deployment, package)
        deployments.add(_event(EventKind.promote, actor, standing, revision))
    await db.flush()
    return await require_deployment(db, actor, name)


async def rollback(db: AsyncSession, actor: Actor, *, name: str) -> Standing:
    """Undo the last promotion: withdraw it while it starts, else return to the version before."""
    deployments = DeploymentRepository(db, actor.account_id)
    standing = await deployments.standing(name, lock=True)
    if standing is None:
        raise DeploymentNotFound(name)
    if standing.starting is not None:
        to, why = standing.served, f"{standing.starting.ref} was withdrawn before it was served"
        left: str | None = standing.starting.ref
        await _withdraw(db, actor, standing, why="withdrawn by a rollback")
    else:
        before = standing.require_previous()
        package = await _require_servable(db, actor, PackageRef.parse(before.ref))
        left, why = standing.served.ref if standing.served else None, ""
        to = await _start(db, actor, standing.deployment, package)
    deployments.add(_event(EventKind.rollback, actor, standing, to, why=why))
    kind = EventType.deployment_rolled_back
    tell(db, standing.deployment, kind, to=to, source=left, why=why)
    await db.flush()
    return await require_deployment(db, actor, name)


async def deployments(
    db: AsyncSession, actor: Actor, *, limit: int = 50, cursor: str | None = None
) -> Page[Standing]:
    """By name."""
    cursors = Cursors((str,), ("deployments", actor.account_id))
    position = cursors.read(cursor)
    rows = await DeploymentRepository(db, actor.account_id).standings(
        after=str(position[0]) if position else None, limit=limit + 1
    )
    return cursors.page(rows, limit, lambda standing: (standing.deployment.name,))


async def deployment(db: AsyncSession, actor: Actor, name: str) -> Standing | None:
    return await DeploymentRepository(db, actor.account_id).standing(name)


async def require_deployment(db: AsyncSession, actor: Actor, name: str) -> Standing:
    found = await deployment(db, actor, name)
    if found is None:
        raise DeploymentNotFound(name)
    return found


async def history(
    db: AsyncSession, actor: Actor, name: str, *, limit: int = 50, cursor: str | None = None
) -> Page[DeploymentEvent]:
    """Every move of the route, newest first."""
    deployment_id = (await require_deployment(db, actor, name)).deployment.id
    cursors = Cursors((int,), ("history", deployment_id))
    position = cursors.read(cursor)
    rows = await DeploymentRepository(db, actor.account_id).events(
        deployment_id, before=int(position[0]) if position else None, limit=limit + 1
    )
    return cursors.page(rows, limit, lambda event: (event.id,))


async def resolve(db: AsyncSession, actor: Actor, name: str) -> Route:
    return (await require_deployment(db, actor, name)).route()


async def _require_servable(db: AsyncSession, actor: Actor, ref: Ref) -> Package:
    package = await packages.require_live(db, actor, ref)
    package.require_promotable()
    package.require_approval()
    return package


async def _ensure(db: AsyncSession, actor: Actor, name: str) -> Standing:
    """The deployment of this name, locked; made now if there is none."""
    if not NAME.fullmatch(name):
        raise InvalidDeploymentName(name)
    deployments = DeploymentRepository(db, actor.account_id)
    if await deployments.standing(name) is None:
        try:
            async with db.begin_nested():
                deployments.add(
                    Deployment(id=new_id("dep"), account_id=actor.account_id, name=name)
                )
        except IntegrityError:  # somebody made it at the same moment: theirs will do
            await db.flush()
    found = await deployments.standing(name, lock=True)
    if found is None:
        raise DeploymentNotFound(name)
    return found


async def _withdraw(db: AsyncSession, actor: Actor, standing: Standing, *, why: str) -> None:
    """The deployer notices, and ends the process that was starting."""
    starting = standing.starting
    if starting is not None:
        starting.error, starting.status = why, RevisionStatus.failed
        await holds.release(db, actor, holder_kind=HolderKind.deployment, holder_id=starting.id)


async def _start(
    db: AsyncSession, actor: Actor, deployment: Deployment, package: Package
) -> DeploymentRevision:
    """It holds its version until it has failed or stopped."""
    revision = _revision(deployment, package)
    DeploymentRepository(db, actor.account_id).add(revision)
    await holds.place(
        db,
        actor,
        package,
        holder_kind=HolderKind.deployment,
        holder_id=revision.id,
        holder_name=deployment.name,
    )
    return revision


def _revision(deployment: Deployment, package: Package) -> DeploymentRevision:
    deployment.last_number += 1
    deployment.updated_at = now()
    return DeploymentRevision(
        id=new_id("rev"),
        account_id=deployment.account_id,
        deployment_id=deployment.id,
        number=deployment.last_number,
        package_id=package.id,
        ref=package.ref,
        digest=package.digest,
        base_model=package.base_model,
        target="local",
        served_name=f"{package.ref}:{package.digest}",
    )


def _event(
    kind: EventKind,
    actor: Actor,
    standing: Standing,
    to: DeploymentRevision | None,
    *,
    why: str = "",
) -> DeploymentEvent:
    return DeploymentEvent(
        account_id=actor.account_id,
        deployment_id=standing.deployment.id,
        kind=kind,
        actor=actor.role,
        source=standing.served.ref if standing.served else None,
        target=to.ref if to else None,
        digest=to.digest if to else None,
        why=why,
    )
