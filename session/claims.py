"""What sessions and merges need of the object store, for the registry, which knows neither."""

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from registry.collection.claims import Claims
from session.lifecycle.model import LIVE, TrainingSession
from session.merges.model import Merge, MergeStatus
from session.operations.model import Operation, OperationStatus


async def _holders(db: AsyncSession, ids: Collection[str]) -> set[str]:
    """Operations and merges that are not over: a worker saves for them, or will again."""
    operations = select(Operation.id).where(
        Operation.id.in_(ids),
        Operation.status.in_((OperationStatus.pending, OperationStatus.running)),
    )
    merges = select(Merge.id).where(
        Merge.id.in_(ids), Merge.status.in_((MergeStatus.pending, MergeStatus.running))
    )
    return {*await db.scalars(operations), *await db.scalars(merges)}


async def _sessions(db: AsyncSession, ids: Collection[str]) -> set[str]:
    query = select(TrainingSession.id).where(
        TrainingSession.id.in_(ids), TrainingSession.status.in_(LIVE)
    )
    return set(await db.scalars(query))


CLAIMS = Claims(holders=_holders, folders={"sessions": _sessions})
