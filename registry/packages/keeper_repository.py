"""What the keeper asks: of one group, which versions its policy is about; and what is due, across
accounts."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Select, exists, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from registry.packages.model import Package, PackageAlias, PackageGroup, PackageHold
from registry.packages.ref import PackageRef

_IS_HELD = exists().where(PackageHold.package_id == Package.id)
_IS_ALIASED = exists().where(PackageAlias.package_id == Package.id)


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a policy looks at of a version."""

    version: int
    size: int
    created_at: datetime
    stage: str
    is_held: bool
    is_aliased: bool


@dataclass(frozen=True, slots=True)
class Due:
    account_id: str
    ref: PackageRef


class RetentionRepository:
    """Of the versions of one group that are not deleted."""

    def __init__(self, db: AsyncSession, account_id: str, group_id: str) -> None:
        self._db = db
        self._account_id = account_id
        self._group_id = group_id

    async def candidates(self, *, before: int | None, limit: int) -> Sequence[Candidate]:
        """Newest first."""
        query = select(
            *(Package.version, Package.size, Package.created_at, Package.stage),
            *(_IS_HELD, _IS_ALIASED),
        ).where(*self._live())
        if before is not None:
            query = query.where(Package.version < before)
        found = await self._db.execute(query.order_by(Package.version.desc()).limit(limit))
        return [Candidate(*row) for row in found]

    async def last(self, count: int) -> int:
        """The lowest number of the newest `count`; 0 where there are not as many."""
        query = select(Package.version).where(*self._live()).order_by(Package.version.desc())
        return await self._db.scalar(query.offset(count - 1).limit(1)) or 0

    async def best(self, metric: str, *, largest: bool, count: int) -> Sequence[int]:
        """By what was logged last, else by what was saved. Of equals, the newer one; what has no
        such metric takes no part."""
        logged, saved = Package.logged_metrics[metric], Package.metrics[metric]
        value = func.coalesce(logged.as_float(), saved.as_float())
        best_first = value.desc() if largest else value.asc()
        query = select(Package.version).where(*self._live(), value.is_not(None))
        found = await self._db.scalars(
            query.order_by(best_first, Package.version.desc()).limit(count)
        )
        return found.all()

    def _live(self) -> tuple[ColumnElement[bool], ...]:
        return (
            Package.account_id == self._account_id,
            Package.group_id == self._group_id,
            Package.deleted_at.is_(None),
        )


class DueRepository:
    """The keeper works for every account."""

    def __init__(self, db: AsyncSession) -> None:
        self._db = db

    async def purges(self, *, at: datetime, begun_before: datetime, limit: int) -> Sequence[Due]:
        """Those that nobody has begun, or that whoever began has not ended in time."""
        is_free = or_(Package.purging_at.is_(None), Package.purging_at <= begun_before)
        query = self._refs().where(Package.purge_at <= at, Package.purged_at.is_(None), is_free)
        return await self._due(query.order_by(Package.purge_at, Package.id).limit(limit))

    async def expiries(self, *, at: datetime, limit: int) -> Sequence[Due]:
        """But those that are held: they stay until they are not."""
        is_over = (Package.expires_at <= at, Package.deleted_at.is_(None))
        query = self._refs().where(*is_over, ~_IS_HELD, ~_IS_ALIASED)
        return await self._due(query.order_by(Package.expires_at, Package.id).limit(limit))

    async def claim_group(self, *, at: datetime, applied_before: datetime) -> PackageGroup | None:
        """The next group whose policy is to be applied; it is nobody else's for now."""
        waits = or_(
            PackageGroup.retention_applied_at.is_(None),
            PackageGroup.retention_applied_at <= applied_before,
        )
        first = (
            select(PackageGroup.id)
            .where(PackageGroup.retention.is_not(None), PackageGroup.deleted_at.is_(None), waits)
            .order_by(PackageGroup.retention_applied_at.nulls_first(), PackageGroup.id)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        claimed = await self._db.scalars(
            update(PackageGroup)
            .where(PackageGroup.id.in_(first))
            .values(retention_applied_at=at)
            .returning(PackageGroup)
        )
        return claimed.one_or_none()

    def _refs(self) -> Select[str, str, int]:
        return select(Package.account_id, PackageGroup.name, Package.version).join(Package.group)

    async def _due(self, query: Select[str, str, int]) -> Sequence[Due]:
        found = await self._db.execute(query)
        return [Due(account, PackageRef(group, version)) for account, group, version in found]
