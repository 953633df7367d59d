"""What the keeper of sessions asks, across accounts. Each question is asked twice: to find
candidates, and again of one whose row is locked."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, and_, exists, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from session.lifecycle.model import LIVE, Status, TrainingSession
from session.operations.model import Operation, OperationStatus
from session.operations.standing import is_blocked

_OPEN = (OperationStatus.pending, OperationStatus.running)


def is_idle(since: datetime) -> ColumnElement[bool]:
    """Nothing was asked of it since then and nothing is under way, nor a save being written."""
    return and_(
        TrainingSession.status == Status.running,
        TrainingSession.last_active_at <= since,
        TrainingSession.next_number > TrainingSession.last_number,
        ~_has(Operation.status.in_(_OPEN)),
    )


def is_old(since: datetime) -> ColumnElement[bool]:
    return and_(TrainingSession.status.in_(LIVE), TrainingSession.created_at <= since)


def waits_in_vain(since: datetime) -> ColumnElement[bool]:
    """Blocked for so long: since the last one before the gap was over and one behind it was there.
    What was accepted before the gap has ended."""
    begun = func.coalesce(Operation.completed_at, Operation.started_at, Operation.created_at)
    return and_(
        is_blocked(),
        _has(Operation.number > TrainingSession.next_number, Operation.created_at <= since),
        ~_has(Operation.number == TrainingSession.next_number - 1, begun > since),
        ~_has(
            Operation.number < TrainingSession.next_number,
            Operation.status.in_(_OPEN),
        ),
    )


def _has(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    mine = Operation.session_id == TrainingSession.id
    return exists().where(mine, *conditions).correlate(TrainingSession)


class DueRepository:
    def __init__(self, db: AsyncSession) -> None:
        self._db = db

    async def sessions(self, is_due: ColumnElement[bool], *, limit: int) -> Sequence[str]:
        query = select(TrainingSession.id).where(is_due).order_by(TrainingSession.id)
        return (await self._db.scalars(query.limit(limit))).all()

    async def locked(self, session_id: str, is_due: ColumnElement[bool]) -> TrainingSession | None:
        """Nobody adds to its log before this transaction ends. None where it is no longer due."""
        found = await self._db.get(TrainingSession, session_id, with_for_update=True)
        if found is None:
            return None
        is_still = select(TrainingSession.id).where(TrainingSession.id == session_id, is_due)
        return found if await self._db.scalar(is_still) else None

    async def unpruned(self, *, ended_before: datetime, limit: int) -> Sequence[TrainingSession]:
        query = select(TrainingSession).where(
            TrainingSession.ended_at <= ended_before, TrainingSession.pruned_at.is_(None)
        )
        return (await self._db.scalars(query.order_by(TrainingSession.ended_at).limit(limit))).all()
