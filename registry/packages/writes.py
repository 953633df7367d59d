"""Write intents: what is being written is known before its first byte, so that no collection of
garbage mistakes it for some, and nothing that was collected is ever published."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.artifacts.store import require_folder
from registry.kit.clock import now
from registry.packages.errors import AlreadyRegistered, InvalidPackage, WriteCollected
from registry.packages.model import PackageWrite
from registry.packages.repository import PackageRepository
from registry.packages.write_repository import WriteRepository


async def begin(
    db: AsyncSession,
    actor: Actor,
    package_id: str,
    *,
    prefix: str,
    paths: Sequence[str],
    holder: str = "",
) -> PackageWrite:
    """Say what will be written; commit before the first byte. Saying it again keeps it fresh.

    `holder` is what it is written for. What was begun for the same holder before is given up: of
    two who do the same work, only the later one can publish.
    """
    if not require_folder(prefix).startswith(f"{actor.account_id}/"):
        raise InvalidPackage("prefix", f"{prefix!r} is not the account's")
    if await PackageRepository(db, actor.account_id).package_by_id(package_id):
        raise AlreadyRegistered(package_id)
    writes = WriteRepository(db, actor.account_id)
    if holder:
        await writes.collect(holder, but=package_id)
    found = await writes.locked(package_id)
    if found is None:
        found = PackageWrite(
            id=package_id, account_id=actor.account_id, holder=holder, prefix=prefix, paths=[]
        )
        writes.add(found)
    if found.collected_at is not None:
        raise WriteCollected(package_id)
    found.paths, found.touched_at = list(paths), now()
    await db.flush()
    return found


async def publish(db: AsyncSession, actor: Actor, package_id: str) -> None:
    """End the write in the transaction that names its files."""
    if not await WriteRepository(db, actor.account_id).take(package_id):
        raise WriteCollected(package_id)


async def give_up(db: AsyncSession, actor: Actor, holder: str) -> Sequence[PackageWrite]:
    """Nothing that was begun for the holder is published any more: its files may go."""
    return await WriteRepository(db, actor.account_id).collect(holder)
