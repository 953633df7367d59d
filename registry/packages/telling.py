"""What the outside hears of a version, written in the transaction of the change."""

from collections.abc import Mapping

from sqlalchemy.ext.asyncio import AsyncSession

from registry.events import service as events
from registry.events.model import EventType
from registry.packages.model import EventKind, Package, PackageEvent

_TOLD: Mapping[str, EventType] = {
    EventKind.approval: EventType.version_approval,
    EventKind.stage: EventType.version_stage,
    EventKind.deleted: EventType.version_deleted,
    EventKind.restored: EventType.version_restored,
    EventKind.purged: EventType.version_purged,
}


def tell(db: AsyncSession, package: Package, kind: EventType, **more: object) -> None:
    about = {
        "id": package.id,
        "group": package.group.name,
        "version": package.version,
        "ref": package.ref,
        "kind": package.kind,
        "digest": package.digest,
    }
    events.emit(db, package.account_id, kind, {**about, **more})


def tell_move(db: AsyncSession, package: Package, move: PackageEvent) -> None:
    """A hold is nobody's business but the group's."""
    kind = _kind(move)
    if kind is None:
        return
    by = {"role": move.role, "token": move.token}
    said = {"from": move.source, "to": move.target, "why": move.why, "by": by}
    if move.alias is not None:
        said["alias"] = move.alias
    tell(db, package, kind, **said)


def _kind(move: PackageEvent) -> EventType | None:
    if move.kind != EventKind.alias:
        return _TOLD.get(move.kind)
    return EventType.alias_moved if move.target else EventType.alias_removed
