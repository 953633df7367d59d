"""Who keeps a version from being deleted: an alias by pointing at it, all others by a hold.

The registry knows of a holder only its kind, id and name. Placing a hold, letting go of one and
deleting a version lock the version's row first: of a hold and a deletion at one moment one is
refused, and of equal requests one is an event.
"""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from registry.access import service as access
from registry.access.actor import Actor, Role
from registry.packages import moves, service
from registry.packages.errors import HoldNotFound, VersionHeld
from registry.packages.limits import check_text
from registry.packages.model import EventKind, HolderKind, Package, PackageAlias, PackageHold
from registry.packages.ref import PackageRef, Ref
from registry.packages.repository import PackageRepository


async def place(
    db: AsyncSession,
    actor: Actor,
    package: Package,
    *,
    holder_kind: HolderKind,
    holder_id: str,
    holder_name: str = "",
    why: str = "",
) -> PackageHold:
    """Refused where the version is deleted. A holder that holds it already goes on doing so."""
    check_text("why", why)
    packages = PackageRepository(db, actor.account_id)
    found = await packages.lock(package.id)
    found.require_live()
    known = await packages.hold(package.id, holder_kind, holder_id)
    if known is not None:
        return known
    hold = PackageHold(
        package_id=package.id,
        holder_kind=holder_kind,
        holder_id=holder_id,
        account_id=actor.account_id,
        holder_name=holder_name or holder_id,
        why=why,
    )
    packages.add(hold)
    await db.flush()
    return hold


async def release(
    db: AsyncSession, actor: Actor, *, holder_kind: HolderKind, holder_id: str
) -> None:
    """Everything that this holder holds. One that holds nothing has released it already."""
    await PackageRepository(db, actor.account_id).release(holder_kind, holder_id)


async def hold(db: AsyncSession, actor: Actor, ref: PackageRef, *, why: str = "") -> PackageHold:
    """A person's own: they are known by their token."""
    check_text("why", why)
    package = await moves.locked(db, actor, ref)
    holder = actor.token or ""
    known = await PackageRepository(db, actor.account_id).hold(
        package.id, HolderKind.person, holder
    )
    placed = await place(
        db, actor, package, holder_kind=HolderKind.person, holder_id=holder, why=why
    )
    if known is None:
        moves.record(db, actor, package, EventKind.hold, None, holder, why=why)
        await db.flush()
    return placed


async def let_go(
    db: AsyncSession, actor: Actor, ref: PackageRef, *, holder: str | None = None, why: str = ""
) -> None:
    """End one's own hold. An admin may end that of another token, which may be gone."""
    check_text("why", why)
    package = await moves.locked(db, actor, ref)
    wanted = holder or actor.token or ""
    if wanted != actor.token:
        access.require_role(actor, Role.admin)
    packages = PackageRepository(db, actor.account_id)
    found = await packages.hold(package.id, HolderKind.person, wanted)
    if found is None:
        raise HoldNotFound(package.ref, wanted)
    await packages.remove(found)
    moves.record(db, actor, package, EventKind.hold, wanted, None, why=why)
    await db.flush()


async def holds(
    db: AsyncSession, actor: Actor, ref: Ref
) -> tuple[Sequence[PackageAlias], Sequence[PackageHold]]:
    """Of a version: the aliases that point at it, which hold it too, and the others."""
    package = await service.require_version(db, actor, ref)
    packages = PackageRepository(db, actor.account_id)
    return await packages.aliases_of(package), await packages.holds(package.id)


async def require_none(db: AsyncSession, package: Package) -> None:
    """Of a version whose row is locked. Names every holder."""
    found = await PackageRepository(db, package.account_id).holds(package.id)
    holders = [*(f"alias {alias.name}" for alias in package.aliases), *map(str, found)]
    if holders:
        raise VersionHeld(package.ref, holders)
