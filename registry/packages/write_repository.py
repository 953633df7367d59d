from collections.abc import Sequence

from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from registry.kit.clock import now
from registry.packages.model import PackageWrite


class WriteRepository:
    """Queries on what is being written for one account."""

    def __init__(self, db: AsyncSession, account_id: str) -> None:
        self._db = db
        self._account_id = account_id

    def add(self, write: PackageWrite) -> None:
        self._db.add(write)

    async def locked(self, write_id: str) -> PackageWrite | None:
        """As it is now, and nobody else changes it until this transaction ends."""
        query = (
            select(PackageWrite)
            .where(PackageWrite.account_id == self._account_id, PackageWrite.id == write_id)
            .with_for_update()
            .execution_options(populate_existing=True)
        )
        return (await self._db.scalars(query)).one_or_none()

    async def take(self, write_id: str) -> bool:
        """Remove one that is not collected; False where there is none."""
        taken = await self._db.execute(
            delete(PackageWrite)
            .where(
                PackageWrite.account_id == self._account_id,
                PackageWrite.id == write_id,
                PackageWrite.collected_at.is_(None),
            )
            .returning(PackageWrite.id)
            .execution_options(synchronize_session=False)
        )
        return taken.first() is not None

    async def collect(self, holder: str, *, but: str | None = None) -> Sequence[PackageWrite]:
        """Mark all that was begun for the holder, but for one; those that were not marked yet."""
        query = update(PackageWrite).where(
            PackageWrite.account_id == self._account_id,
            PackageWrite.holder == holder,
            PackageWrite.collected_at.is_(None),
        )
        if but is not None:
            query = query.where(PackageWrite.id != but)
        marked = query.values(collected_at=now()).returning(PackageWrite)
        return (await self._db.scalars(marked)).all()
