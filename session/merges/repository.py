"""Queries on merges."""

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from session.lifecycle.model import Worker
from session.merges.model import Merge, MergeStatus


class MergeRepository:
    """One account's."""

    def __init__(self, db: AsyncSession, account_id: str) -> None:
        self._db = db
        self._account_id = account_id

    def add(self, merge: Merge) -> None:
        self._db.add(merge)

    async def find(self, merge_id: str) -> Merge | None:
        if "\0" in merge_id:
            return None  # PostgreSQL refuses what a URL can hold
        query = select(Merge).where(Merge.account_id == self._account_id, Merge.id == merge_id)
        return (await self._db.scalars(query)).one_or_none()


class MergeQueue:
    """Those of every account, for a worker."""

    def __init__(self, db: AsyncSession) -> None:
        self._db = db

    async def oldest_free(self) -> Merge | None:
        """Waiting, or left behind by a worker that is gone."""
        orphaned = Merge.worker_id.not_in(select(Worker.id))
        query = (
            select(Merge)
            .where(
                or_(
                    Merge.status == MergeStatus.pending,
                    (Merge.status == MergeStatus.running) & orphaned,
                )
            )
            .order_by(Merge.id)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        return (await self._db.scalars(query)).one_or_none()

    async def require(self, merge_id: str) -> Merge:
        return await self._db.get_one(Merge, merge_id)
