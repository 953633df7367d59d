from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, delete, or_, select, true, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute, contains_eager

from registry.access.model import Account
from registry.kit.clock import now
from registry.packages.model import Package, PackageFile, PackageWrite


class CollectionRepository:
    """What is known of objects, over one account or over all."""

    def __init__(self, db: AsyncSession, account_id: str | None) -> None:
        self._db = db
        self._account_id = account_id

    async def accounts(self) -> set[str]:
        return set(await self._db.scalars(select(Account.id).where(self._mine(Account.id))))

    async def write_ids(self, ids: Collection[str]) -> set[str]:
        query = select(PackageWrite.id).where(PackageWrite.id.in_(ids))
        return set(await self._db.scalars(query))

    async def stored_ids(self, ids: Collection[str]) -> set[str]:
        """Of the versions that have files, though they may be deleted."""
        query = select(Package.id).where(Package.id.in_(ids), Package.purged_at.is_(None))
        return set(await self._db.scalars(query))

    async def idle_writes(self, *, since: datetime) -> Sequence[PackageWrite]:
        query = select(PackageWrite).where(self._mine(PackageWrite.account_id), _is_idle(since))
        return (await self._db.scalars(query.order_by(PackageWrite.id))).all()

    async def mark(self, ids: Collection[str], *, since: datetime) -> set[str]:
        """Collect those of these that are idle still, neither published nor begun again."""
        query = (
            update(PackageWrite)
            .where(PackageWrite.id.in_(ids), _is_idle(since))
            .values(collected_at=now())
            .returning(PackageWrite.id)
        )
        return set(await self._db.scalars(query))

    async def forget(self, write_id: str) -> None:
        await self._db.execute(delete(PackageWrite).where(PackageWrite.id == write_id))

    async def listed(self, *, after: str, limit: int) -> Sequence[Package]:
        """Versions that anybody can see and read, by id."""
        query = (
            select(Package)
            .join(Package.group)
            .options(contains_eager(Package.group))
            .where(self._mine(Package.account_id), Package.deleted_at.is_(None), Package.id > after)
            .order_by(Package.id)
            .limit(limit)
        )
        return (await self._db.scalars(query)).all()

    async def files(self, ids: Collection[str]) -> Sequence[PackageFile]:
        query = select(PackageFile).where(PackageFile.package_id.in_(ids))
        ordered = query.order_by(PackageFile.package_id, PackageFile.path)
        return (await self._db.scalars(ordered)).all()

    async def is_listed(self, package_id: str) -> bool:
        query = select(Package.id).where(Package.id == package_id, Package.deleted_at.is_(None))
        return await self._db.scalar(query) is not None

    def _mine(self, column: InstrumentedAttribute[str]) -> ColumnElement[bool]:
        return true() if self._account_id is None else column == self._account_id


def _is_idle(since: datetime) -> ColumnElement[bool]:
    return or_(PackageWrite.collected_at.is_not(None), PackageWrite.touched_at <= since)
