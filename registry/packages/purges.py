"""The files of tombstones, removed for good.

Two phases, so that a process may die anywhere: one transaction begins a purge, one ends it, and the
files go between them. What was begun and not ended is done again, and a file that is gone is no
error. Slow, and so it opens its own transactions.
"""

from datetime import datetime

from registry.access.actor import Actor
from registry.artifacts.store import BlobStore
from registry.kit.db import Database
from registry.packages import deletion, service
from registry.packages.model import Package
from registry.packages.ref import PackageRef


async def purge(
    database: Database, store: BlobStore, actor: Actor, ref: PackageRef, *, expected: int
) -> Package:
    """Now, whatever is left of the grace."""
    async with database.read() as db:
        prefix = (await deletion.require_tombstone(db, actor, ref)).prefix
    found = await _bytes(store, prefix)
    async with database.begin() as db:
        await deletion.begin_purge(db, actor, ref, found=found, expected=expected)
    await store.delete_folder(prefix)
    async with database.begin() as db:
        return await deletion.finish_purge(db, actor, ref)


async def purge_due(
    database: Database, store: BlobStore, actor: Actor, ref: PackageRef, *, at: datetime
) -> Package | None:
    """None where it is not due any more, or another process is at it."""
    async with database.read() as db:
        prefix = (await service.require_version(db, actor, ref)).prefix
    found = await _bytes(store, prefix)
    async with database.begin() as db:
        if await deletion.claim_purge(db, actor, ref, found=found, at=at) is None:
            return None
    await store.delete_folder(prefix)
    async with database.begin() as db:
        return await deletion.finish_purge(db, actor, ref, by=deletion.KEEPER)


async def _bytes(store: BlobStore, prefix: str) -> int:
    return sum(each.size for each in await store.objects(prefix))
