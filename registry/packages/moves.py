"""What people decide about versions. Each decision is made against the state that its maker saw,
and each that changes something is one event of the group's history."""

from collections.abc import Sequence
from datetime import datetime
from typing import TypedDict

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor, Role
from registry.kit.ids import new_id
from registry.kit.pages import Cursors, Page
from registry.packages import service
from registry.packages.errors import AliasIsProtected, AliasMoved, AliasNotFound, VersionNotFound
from registry.packages.limits import check_alias, check_description, check_tags, check_text
from registry.packages.model import (
    Approval,
    EventKind,
    Package,
    PackageAlias,
    PackageEvent,
    PackageGroup,
    Stage,
)
from registry.packages.ref import PackageRef
from registry.packages.repository import PackageRepository
from registry.packages.telling import tell_move


class Changes(TypedDict, total=False):
    """What may be said anew of a version; what is left out stays."""

    description: str
    tags: list[str]
    stage: Stage
    expires_at: datetime | None


async def decide(
    db: AsyncSession, actor: Actor, ref: PackageRef, *, approval: Approval, expected: int, why: str
) -> Package:
    check_text("why", why)
    package = await locked(db, actor, ref)
    package.require_live()
    package.require_revision(expected)
    if package.approval != approval:
        record(db, actor, package, EventKind.approval, package.approval, approval, why=why)
        package.approval = approval
        package.revision += 1
        await db.flush()
    return package


async def edit(
    db: AsyncSession, actor: Actor, ref: PackageRef, changes: Changes, *, expected: int, why: str
) -> Package:
    check_text("why", why)
    check_description(changes.get("description", ""))
    check_tags(changes.get("tags", ()))
    package = await locked(db, actor, ref)
    package.require_live()
    package.require_revision(expected)
    stage = changes.get("stage", Stage(package.stage))
    if stage != package.stage:
        record(db, actor, package, EventKind.stage, package.stage, stage, why=why)
    package.stage = stage
    package.description = changes.get("description", package.description)
    package.expires_at = changes.get("expires_at", package.expires_at)
    if "tags" in changes:
        package.retag(changes["tags"])
    package.revision += 1
    await db.flush()
    return package


async def point(
    db: AsyncSession,
    actor: Actor,
    group_name: str,
    name: str,
    *,
    version: int,
    expected: int | None,
    why: str = "",
    protected: bool | None = None,
) -> PackageAlias:
    """Let an alias point at a version, if it still stands as `expected`: at that revision, or
    nowhere where that is None. Whoever protects one, or moves a protected one, is an admin."""
    check_alias(name)
    check_text("why", why)
    group = await service.require_group(db, actor, group_name)
    package = await locked(db, actor, PackageRef(group_name, version))
    package.require_live()
    alias = await _alias(db, actor, group, name)
    alias.require_revision(expected)
    protects = alias.is_protected if protected is None else protected
    if (alias.is_protected or protects) and not actor.role.covers(Role.admin):
        raise AliasIsProtected(alias.ref)
    if alias.package is package and protects == alias.is_protected:
        return alias
    if alias.package is not package:
        before = alias.package.ref if alias.package else None
        record(db, actor, package, EventKind.alias, before, package.ref, why=why, alias=name)
    alias.is_protected = protects
    alias.point(package)
    await db.flush()
    return alias


async def unpoint(
    db: AsyncSession, actor: Actor, group_name: str, name: str, *, expected: int, why: str = ""
) -> None:
    check_text("why", why)
    group = await service.require_group(db, actor, group_name)
    alias = await PackageRepository(db, actor.account_id).alias(group.id, name, lock=True)
    if alias is None or alias.package is None:
        raise AliasNotFound(group_name, name)
    alias.require_revision(expected)
    if alias.is_protected and not actor.role.covers(Role.admin):
        raise AliasIsProtected(alias.ref)
    record(db, actor, alias.package, EventKind.alias, alias.package.ref, None, why=why, alias=name)
    alias.is_protected = False
    alias.point(None)
    await db.flush()


async def require_alias(db: AsyncSession, actor: Actor, group_name: str, name: str) -> PackageAlias:
    group = await service.require_group(db, actor, group_name)
    found = await PackageRepository(db, actor.account_id).alias(group.id, name)
    if found is None or found.package is None:
        raise AliasNotFound(group_name, name)
    return found


async def aliases(
    db: AsyncSession, actor: Actor, group_name: str, *, limit: int = 50, cursor: str | None = None
) -> Page[PackageAlias]:
    """By name."""
    group = await service.require_group(db, actor, group_name)
    cursors = Cursors((str,), ("aliases", group.id))
    position = cursors.read(cursor)
    rows = await PackageRepository(db, actor.account_id).aliases(
        group.id, after=str(position[0]) if position else None, limit=limit + 1
    )
    return cursors.page(rows, limit, lambda alias: (alias.name,))


async def history(
    db: AsyncSession,
    actor: Actor,
    group_name: str,
    *,
    alias: str | None = None,
    version: int | None = None,
    at: datetime | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[PackageEvent]:
    """Newest first; with `at`, only what had happened by then."""
    group = await service.require_group(db, actor, group_name)
    scope = ("group history", group.id, alias, version, at.isoformat() if at else None)
    cursors = Cursors((int,), scope)
    position = cursors.read(cursor)
    rows = await PackageRepository(db, actor.account_id).events(
        group.id,
        alias=alias,
        version=version,
        at=at,
        before=int(position[0]) if position else None,
        limit=limit + 1,
    )
    return cursors.page(rows, limit, lambda event: (event.id,))


async def standing(
    db: AsyncSession, actor: Actor, group_name: str, *, at: datetime
) -> Sequence[PackageEvent]:
    """Where each alias pointed at that time, told by the move that had made it so."""
    group = await service.require_group(db, actor, group_name)
    return await PackageRepository(db, actor.account_id).last_moves(group.id, at=at)


async def locked(db: AsyncSession, actor: Actor, ref: PackageRef) -> Package:
    """Also one that is deleted. Nobody else changes it until this transaction ends."""
    package = await PackageRepository(db, actor.account_id).locked(ref)
    if package is None:
        await service.require_group(db, actor, ref.group)
        raise VersionNotFound(ref)
    return package


async def _alias(db: AsyncSession, actor: Actor, group: PackageGroup, name: str) -> PackageAlias:
    """The alias, locked; made now, pointing nowhere, if there never was one."""
    packages = PackageRepository(db, actor.account_id)
    found = await packages.alias(group.id, name, lock=True)
    if found is not None:
        return found
    made = PackageAlias(
        id=new_id("als"), account_id=actor.account_id, group=group, name=name, package=None
    )
    try:
        async with db.begin_nested():
            packages.add(made)
    except IntegrityError:  # somebody else made it at the same moment, and points it somewhere
        raise AliasMoved(f"{group.name}:{name}", now="just made by somebody else") from None
    return made


def record(
    db: AsyncSession,
    actor: Actor,
    package: Package,
    kind: EventKind,
    source: str | None,
    target: str | None,
    *,
    why: str,
    alias: str | None = None,
    by: str | None = None,
) -> None:
    """One line of the history. `by` names who acts for the service, without a token."""
    move = PackageEvent(
        account_id=actor.account_id,
        group_id=package.group_id,
        kind=kind,
        alias=alias,
        version=package.version,
        digest=package.digest,
        source=source,
        target=target,
        role=by or actor.role,
        token=actor.token,
        why=why,
    )
    PackageRepository(db, actor.account_id).add(move)
    tell_move(db, package, move)
