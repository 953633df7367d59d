"""Ask for a merge, claim it, end it."""

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.kit.clock import now
from registry.kit.ids import new_id
from registry.packages import service as packages
from registry.packages.model import PackageKind
from registry.packages.service import PackageRef
from session.lifecycle.model import Worker
from session.merges.errors import MergedAlready, MergeNotFound
from session.merges.model import Merge, MergeStatus


class MergeRepository:
    def __init__(self, db: AsyncSession) -> None:
        self._db = db

    def add(self, merge: Merge) -> None:
        self._db.add(merge)

    async def find(self, account_id: str, merge_id: str) -> Merge | None:
        query = select(Merge).where(Merge.account_id == account_id, Merge.id == merge_id)
        return (await self._db.scalars(query)).one_or_none()

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


async def request(db: AsyncSession, actor: Actor, ref: PackageRef) -> Merge:
    """Ask for a merged version of a state or adapter, in the same group."""
    source = await packages.require_version(db, actor, ref)
    if source.kind == PackageKind.merged:
        raise MergedAlready(str(ref))
    merge = Merge(
        id=new_id("mrg"),
        account_id=actor.account_id,
        group_name=ref.group,
        source_id=source.id,
        source_ref=str(ref),
    )
    MergeRepository(db).add(merge)
    await db.flush()
    return merge


async def require_merge(db: AsyncSession, actor: Actor, merge_id: str) -> Merge:
    found = await MergeRepository(db).find(actor.account_id, merge_id)
    if found is None:
        raise MergeNotFound(merge_id)
    return found


async def claim(db: AsyncSession, worker_id: str) -> Merge | None:
    merge = await MergeRepository(db).oldest_free()
    if merge is not None:
        merge.status, merge.worker_id = MergeStatus.running, worker_id
    return merge


def complete(merge: Merge, *, version_ref: str) -> None:
    merge.status, merge.version_ref = MergeStatus.completed, version_ref
    merge.completed_at = now()


def fail(merge: Merge, *, error: str) -> None:
    merge.status, merge.error = MergeStatus.failed, error
    merge.completed_at = now()
