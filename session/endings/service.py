"""The end of a session, whoever decides it; and deleting one that has ended."""

from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.artifacts.store import BlobStore
from registry.kit.clock import now
from registry.kit.db import Database
from session.checkpoints import discard, session_prefix
from session.lifecycle import service as lifecycle
from session.lifecycle.model import Status, TrainingSession
from session.lifecycle.repository import SessionRepository, WorkerRepository
from session.operations import service as operations
from session.operations.repository import LogRepository
from session.sampling.repository import forget_weights

_AT_ONCE = 500
_ENDED = {
    Status.stopped: "the session is stopped",
    Status.expired: "the session has expired",
    Status.failed: "the session failed",
}


async def end(
    db: AsyncSession, session: TrainingSession, status: Status, *, why: str | None = None
) -> list[str]:
    """The last state of a locked session, in which it holds nothing and what is open is skipped;
    the ids of that. One that has ended already stays what it is."""
    if session.is_live:
        await lifecycle.end(db, session, status, error=why)
    ended = _ENDED[Status(session.status)]
    reason = f"{ended}: {session.error}" if session.error else ended
    skipped = await operations.skip_open(db, session, why=reason)
    await forget_weights(db, session.id)
    return skipped


async def delete(database: Database, store: BlobStore, actor: Actor, name_or_id: str) -> None:
    """Its rows, bodies and sampler weights. What it registered and used stays, and names its id.

    A long log goes in several transactions: one that is cut short is done again.
    """
    is_there = True
    while is_there:
        async with database.begin() as db:
            session = await lifecycle.require_session(db, actor, name_or_id, lock=True)
            session.require_ended()
            is_there = await LogRepository(db, session.id).remove(limit=_AT_ONCE)
            if not is_there:
                await forget_weights(db, session.id)
                await SessionRepository(db, actor.account_id).remove(session.id)
    await discard(store, session_prefix(session.account_id, session.id))


async def prune(database: Database, store: BlobStore, session: TrainingSession) -> None:
    """Forget bodies and results of an ended session. Client tokens and hashes of bodies stay: a
    retry is still the same operation."""
    last: int | None = -1
    while last is not None:
        async with database.begin() as db:
            last = await LogRepository(db, session.id).prune(after=last, limit=_AT_ONCE)
    await store.delete_folder(session_prefix(session.account_id, session.id))
    async with database.begin() as db:
        found = await WorkerRepository(db).require(session.id, lock=True)
        found.pruned_at = now()
