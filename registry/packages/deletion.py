"""Tombstone, grace, purge. Each of these is one transaction; the files go between two of them."""

from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.kit.clock import now, stamp
from registry.packages import holds, moves, service
from registry.packages.errors import GroupNotEmpty, PurgeBegun, VersionHeld
from registry.packages.limits import check_text
from registry.packages.model import EventKind, Package, PackageGroup
from registry.packages.ref import PackageRef
from registry.packages.repository import PackageRepository

KEEPER = "keeper"
"""Who deletes by a rule, as the history names it."""

PURGE_AGAIN_AFTER = timedelta(minutes=10)
"""A purge that has not ended by then is taken for one whose process is gone."""


async def delete(
    db: AsyncSession,
    actor: Actor,
    ref: PackageRef,
    *,
    grace: timedelta,
    expected: int | None = None,
    why: str = "",
    by: str | None = None,
) -> Package:
    """Make a tombstone of it. Refused while anything holds it, naming every holder."""
    check_text("why", why)
    package = await moves.locked(db, actor, ref)
    package.require_live()
    if expected is not None:
        package.require_revision(expected)
    await holds.require_none(db, package)
    package.deleted_at = now()
    package.deleted_by, package.deleted_why = actor.token or by, why
    package.purge_at = package.deleted_at + grace
    _moved(db, actor, package, EventKind.deleted, "live", "deleted", why=why, by=by)
    await db.flush()
    return package


async def expire(
    db: AsyncSession, actor: Actor, ref: PackageRef, *, at: datetime, grace: timedelta
) -> bool:
    """False where it is not over any more, is deleted, or has come to be held since."""
    package = await moves.locked(db, actor, ref)
    ends = package.expires_at
    if package.deleted_at is not None or ends is None or ends > at:
        return False
    try:
        await delete(db, actor, ref, grace=grace, why=f"expired at {stamp(ends)}", by=KEEPER)
    except VersionHeld:
        return False
    return True


async def restore(
    db: AsyncSession, actor: Actor, ref: PackageRef, *, expected: int, why: str = ""
) -> Package:
    """Until its purge begins. An expiry that has passed would end it again, so that goes."""
    check_text("why", why)
    package = await _tombstone(db, actor, ref)
    package.require_revision(expected)
    if package.purging_at is not None:
        raise PurgeBegun(package.ref, at=package.purging_at)
    if package.expires_at is not None and package.expires_at <= now():
        package.expires_at = None
    package.deleted_at = package.deleted_by = package.deleted_why = package.purge_at = None
    _moved(db, actor, package, EventKind.restored, "deleted", "live", why=why)
    await db.flush()
    return package


async def begin_purge(
    db: AsyncSession, actor: Actor, ref: PackageRef, *, found: int, expected: int | None = None
) -> Package:
    """Whoever asks for it ends the grace. From here on there is no way back.

    `found` is how many bytes there were to free, as counted by the first that began.
    """
    package = await _tombstone(db, actor, ref)
    if expected is not None:
        package.require_revision(expected)
    await _begin(db, package, found=found, at=now())
    package.purge_at = min(package.purge_at or now(), now())
    await db.flush()
    return package


async def claim_purge(
    db: AsyncSession, actor: Actor, ref: PackageRef, *, found: int, at: datetime
) -> Package | None:
    """What is due, unless another process has begun it and may still be at it."""
    package = await moves.locked(db, actor, ref)
    is_taken = package.purging_at is not None and package.purging_at > at - PURGE_AGAIN_AFTER
    is_due = package.purge_at is not None and package.purge_at <= at
    if is_taken or not is_due or package.purged_at is not None:
        return None
    await _begin(db, package, found=found, at=at)
    await db.flush()
    return package


async def finish_purge(
    db: AsyncSession, actor: Actor, ref: PackageRef, *, by: str | None = None
) -> Package:
    """Its files are gone. Two that purged it at once both have, and it is told once."""
    package = await moves.locked(db, actor, ref)
    if package.purged_at is None:
        package.purged_at, package.purge_at = now(), None
        _moved(db, actor, package, EventKind.purged, "deleted", "purged", why="", by=by)
        await db.flush()
    return package


_NAMED = 5  # of the versions that keep a group from being deleted


async def delete_group(db: AsyncSession, actor: Actor, name: str) -> PackageGroup:
    """Of a group that has nothing left but purged versions. Deleting it twice is no error."""
    await service.require_group(db, actor, name)
    packages = PackageRepository(db, actor.account_id)
    group = await packages.group(name, lock=True)
    assert group is not None  # none is ever removed
    if left := await packages.count_unpurged(group.id):
        shown = await packages.unpurged(group.id, limit=_NAMED)
        raise GroupNotEmpty(name, versions=left, shown=shown)
    if group.deleted_at is None:
        group.deleted_at = now()
        group.revision += 1
        await db.flush()
    return group


async def require_tombstone(db: AsyncSession, actor: Actor, ref: PackageRef) -> Package:
    """To look at: it may be restored, or purged, a moment later."""
    package = await service.require_version(db, actor, ref)
    package.require_tombstone()
    return package


async def _tombstone(db: AsyncSession, actor: Actor, ref: PackageRef) -> Package:
    package = await moves.locked(db, actor, ref)
    package.require_tombstone()
    return package


async def _begin(db: AsyncSession, package: Package, *, found: int, at: datetime) -> None:
    await holds.require_none(db, package)
    package.purging_at = at
    package.freed = found if package.freed is None else package.freed


def _moved(
    db: AsyncSession,
    actor: Actor,
    package: Package,
    kind: EventKind,
    source: str,
    target: str,
    *,
    why: str,
    by: str | None = None,
) -> None:
    package.revision += 1
    moves.record(db, actor, package, kind, source, target, why=why, by=by)
