"""Where sessions stand, as every wire shows them: by the rows alone, so no worker is asked."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Select, and_, exists, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.kit.clock import now
from registry.kit.pages import Cursors, Page
from session.lifecycle.errors import SessionNotFound
from session.lifecycle.model import Status, TrainingSession, Worker, WorkerState
from session.operations.model import Operation


def is_blocked() -> ColumnElement[bool]:
    """The log lacks what is next and has what comes later. One that is about to run is no gap: its
    row is there."""
    is_next = Operation.number == TrainingSession.next_number
    has_next = exists().where(Operation.session_id == TrainingSession.id, is_next)
    return and_(
        TrainingSession.status == Status.running,
        TrainingSession.last_number >= TrainingSession.next_number,
        ~has_next.correlate(TrainingSession),
    )


@dataclass(frozen=True, slots=True)
class Standing:
    session: TrainingSession
    is_blocked: bool
    worker_beat_at: datetime | None
    """When the worker that holds it said last that it lives."""

    @property
    def missing(self) -> int | None:
        """The number that later operations wait for."""
        return self.session.next_number if self.is_blocked else None

    @property
    def status(self) -> Status:
        return self.session.shown(missing=self.missing)

    @property
    def worker(self) -> WorkerState | None:
        return self.session.worker(self.worker_beat_at, at=now())


class _StandingRepository:
    def __init__(self, db: AsyncSession, account_id: str) -> None:
        self._db = db
        self._account_id = account_id

    async def find(self, name_or_id: str) -> Standing | None:
        if "\0" in name_or_id:
            return None  # PostgreSQL refuses what a URL can hold
        is_wanted = (TrainingSession.id == name_or_id, TrainingSession.name == name_or_id)
        found = await self._standings(self._mine().where(or_(*is_wanted)))
        return found[0] if found else None

    async def page(
        self, *, status: Status | None, before: str | None, limit: int
    ) -> Sequence[Standing]:
        """Newest first: ids sort by time."""
        query = self._mine().order_by(TrainingSession.id.desc()).limit(limit)
        match status:
            case None:
                pass
            case Status.blocked:
                query = query.where(is_blocked())
            case Status.running:
                query = query.where(TrainingSession.status == status, ~is_blocked())
            case _:
                query = query.where(TrainingSession.status == status)
        if before:
            query = query.where(TrainingSession.id < before)
        return await self._standings(query)

    def _mine(self) -> Select[TrainingSession, bool, datetime | None]:
        return (
            select(TrainingSession, is_blocked(), Worker.heartbeat_at)
            .outerjoin(Worker, Worker.id == TrainingSession.worker_id)
            .where(TrainingSession.account_id == self._account_id)
        )

    async def _standings(
        self, query: Select[TrainingSession, bool, datetime | None]
    ) -> Sequence[Standing]:
        found = await self._db.execute(query)
        return [Standing(session, bool(blocked), beat_at) for session, blocked, beat_at in found]


async def standing(db: AsyncSession, actor: Actor, name_or_id: str) -> Standing:
    found = await _StandingRepository(db, actor.account_id).find(name_or_id)
    if found is None:
        raise SessionNotFound(name_or_id)
    return found


async def standings(
    db: AsyncSession, actor: Actor, *, status: Status | None, limit: int, cursor: str | None
) -> Page[Standing]:
    """Newest first."""
    cursors = Cursors((str,), ("sessions", actor.account_id, status))
    position = cursors.read(cursor)
    rows = await _StandingRepository(db, actor.account_id).page(
        status=status, before=str(position[0]) if position else None, limit=limit + 1
    )
    return cursors.page(rows, limit, lambda row: (row.session.id,))
