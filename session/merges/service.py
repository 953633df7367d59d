"""Ask for a merge, claim it, end it."""

from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor, Role
from registry.kit.clock import now
from registry.kit.ids import new_id
from registry.packages import holds
from registry.packages import service as packages
from registry.packages.model import HolderKind, PackageKind
from registry.packages.service import Ref
from session.merges.errors import MergedAlready, MergeNotFound
from session.merges.model import Merge, MergeStatus
from session.merges.repository import MergeQueue, MergeRepository


async def request(db: AsyncSession, actor: Actor, ref: Ref) -> Merge:
    """Ask for a merged version of a state or adapter, in the same group. Until it ends, it holds
    what it is made from."""
    source = await packages.require_live(db, actor, ref)
    if source.kind == PackageKind.merged:
        raise MergedAlready(source.ref)
    merge = Merge(
        id=new_id("mrg"),
        account_id=actor.account_id,
        group_name=ref.group,
        source_id=source.id,
        source_ref=source.ref,
    )
    MergeRepository(db, actor.account_id).add(merge)
    await holds.place(db, actor, source, holder_kind=HolderKind.merge, holder_id=merge.id)
    return merge


async def require_merge(db: AsyncSession, actor: Actor, merge_id: str) -> Merge:
    found = await MergeRepository(db, actor.account_id).find(merge_id)
    if found is None:
        raise MergeNotFound(merge_id)
    return found


async def claim(db: AsyncSession, worker_id: str) -> Merge | None:
    merge = await MergeQueue(db).oldest_free()
    if merge is not None:
        merge.status, merge.worker_id = MergeStatus.running, worker_id
    return merge


async def require_claimed(db: AsyncSession, merge: Merge) -> Merge:
    """As it is now."""
    return await MergeQueue(db).require(merge.id)


async def complete(db: AsyncSession, merge: Merge, *, version_ref: str) -> None:
    merge.status, merge.version_ref = MergeStatus.completed, version_ref
    await _end(db, merge)


async def fail(db: AsyncSession, merge: Merge, *, error: str) -> None:
    merge.status, merge.error = MergeStatus.failed, error
    await _end(db, merge)


async def _end(db: AsyncSession, merge: Merge) -> None:
    merge.completed_at = now()
    actor = Actor(merge.account_id, Role.member)
    await holds.release(db, actor, holder_kind=HolderKind.merge, holder_id=merge.id)
