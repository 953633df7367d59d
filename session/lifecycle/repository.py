"""Queries on sessions. The account is fixed when one is made, so no query can forget it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, cast

from sqlalchemy import (
    ColumnElement,
    CursorResult,
    Integer,
    Select,
    Table,
    Update,
    bindparam,
    case,
    delete,
    or_,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm.attributes import set_committed_value
from sqlalchemy.sql.dml import ReturningUpdate

from registry.kit.clock import now
from registry.kit.rows import dialect_of, insert_or_replace
from session.lifecycle.errors import SessionGone
from session.lifecycle.model import LIVE, OPEN, SessionMetric, TrainingSession, Worker

# Each is made once: making one takes longer than the database needs for it. Those on the table, and
# not on its class, go past the bookkeeping of objects.
_TABLE = cast(Table, TrainingSession.__table__)


def _is_wanted() -> ColumnElement[bool]:
    columns = _TABLE.c
    is_named = or_(columns.id == bindparam("wanted"), columns.name == bindparam("wanted"))
    return (columns.account_id == bindparam("account")) & is_named


@cache
def _find(*, lock: bool) -> Select[TrainingSession]:
    query = select(TrainingSession).where(_is_wanted())
    return query.with_for_update() if lock else query


@cache
def _reach_next() -> ReturningUpdate[str]:
    is_new = _TABLE.c.last_number < bindparam("last")
    return (
        update(_TABLE)
        .where(_is_wanted(), _TABLE.c.status.in_(OPEN), is_new)
        .values(last_number=bindparam("last"), last_active_at=bindparam("at"))
        .returning(_TABLE.c.id)
    )


@cache
def _reach() -> Update:
    return (
        update(_TABLE)
        .where(_TABLE.c.id == bindparam("session"))
        .values(last_number=bindparam("last"), last_active_at=bindparam("at"))
    )


@cache
def _advance() -> Update:
    last, reached = _TABLE.c.next_number, bindparam("reached", type_=Integer)
    return (
        update(_TABLE)
        .where(_TABLE.c.id == bindparam("session"), _TABLE.c.ended_at.is_(None))
        .values(
            next_number=case((last > reached, last), else_=reached),
            step=bindparam("steps"),
            last_active_at=bindparam("at"),
        )
    )


class SessionRepository:
    def __init__(self, db: AsyncSession, account_id: str) -> None:
        self._db = db
        self._account_id = account_id

    async def reached(self, session: TrainingSession, number: int) -> None:
        """A locked session has accepted this number."""
        last, at = max(session.last_number, number), now()
        await self._db.execute(_reach(), {"session": session.id, "last": last, "at": at})
        set_committed_value(session, "last_number", last)
        set_committed_value(session, "last_active_at", at)

    async def reached_next(self, name_or_id: str, number: int) -> str | None:
        """Lock an open session that has accepted no number so high, and note it: its id."""
        if "\0" in name_or_id:
            return None
        mine = {"account": self._account_id, "wanted": name_or_id}
        return await self._db.scalar(_reach_next(), {**mine, "last": number, "at": now()})

    def _mine(self) -> Select[TrainingSession]:
        return select(TrainingSession).where(TrainingSession.account_id == self._account_id)

    def add(self, session: TrainingSession) -> None:
        self._db.add(session)

    async def find(self, name_or_id: str, *, lock: bool = False) -> TrainingSession | None:
        """With `lock`, nobody else changes the row before this transaction ends."""
        if "\0" in name_or_id:
            return None  # PostgreSQL refuses what a URL can hold
        given = {"account": self._account_id, "wanted": name_or_id}
        return (await self._db.scalars(_find(lock=lock), given)).first()

    async def is_active(self, session_id: str, *, at: datetime) -> None:
        """Somebody wants it. A moment that is past already changes nothing."""
        await self._db.execute(
            update(_TABLE)
            .where(_TABLE.c.id == session_id, _TABLE.c.account_id == self._account_id)
            .where(_TABLE.c.last_active_at < at)
            .values(last_active_at=at)
        )

    async def remove(self, session_id: str) -> None:
        """Its row and what it measured; nothing else may name it any more."""
        await self._db.execute(delete(SessionMetric).where(SessionMetric.session_id == session_id))
        await self._db.execute(
            delete(TrainingSession).where(
                TrainingSession.id == session_id, TrainingSession.account_id == self._account_id
            )
        )

    async def running(self) -> Sequence[TrainingSession]:
        query = self._mine().where(TrainingSession.status == "running")
        return (await self._db.scalars(query.order_by(TrainingSession.name))).all()

    async def metrics(self, session_id: str) -> Sequence[SessionMetric]:
        query = select(SessionMetric).where(SessionMetric.session_id == session_id)
        ordered = query.order_by(SessionMetric.step, SessionMetric.name)
        return (await self._db.scalars(ordered)).all()


async def set_metrics(
    db: AsyncSession, session_id: str, *, step: int, numbers: Mapping[str, float]
) -> None:
    """The last number said for a step and name wins."""
    where = {"session_id": session_id, "step": step}
    rows = [{**where, "name": name, "value": value} for name, value in numbers.items()]
    if rows:
        await db.execute(insert_or_replace(dialect_of(db), SessionMetric), rows)


class WorkerRepository:
    """What a worker asks across accounts: its own row, and the sessions that it may hold."""

    def __init__(self, db: AsyncSession) -> None:
        self._db = db

    def add(self, worker: Worker) -> None:
        self._db.add(worker)

    async def beat(self, worker_id: str) -> bool:
        found = await self._db.execute(
            update(Worker)
            .where(Worker.id == worker_id)
            .values(heartbeat_at=now())
            .returning(Worker.id)
        )
        return found.first() is not None

    async def newest(self) -> Worker | None:
        query = select(Worker).order_by(Worker.heartbeat_at.desc()).limit(1)
        return (await self._db.scalars(query)).first()

    async def remove(self, worker_id: str | None = None) -> None:
        """Forget one worker, or all of them where the supervisor knows that none lives.

        Its sessions are nobody's then, until another worker takes and restores them.
        """
        gone, held = delete(Worker), update(TrainingSession).values(worker_id=None)
        if worker_id:
            gone = gone.where(Worker.id == worker_id)
            held = held.where(TrainingSession.worker_id == worker_id)
        await self._db.execute(gone)
        await self._db.execute(held.where(TrainingSession.status.in_(LIVE)))

    async def unheld(self) -> Sequence[TrainingSession]:
        """Live sessions whose worker is gone, or that never had one."""
        query = (
            select(TrainingSession)
            .where(TrainingSession.status.in_(LIVE))
            .where(
                or_(
                    TrainingSession.worker_id.is_(None),
                    TrainingSession.worker_id.not_in(select(Worker.id)),
                )
            )
            .order_by(TrainingSession.id)
            .with_for_update(skip_locked=True)
        )
        return (await self._db.scalars(query)).all()

    async def advance(self, session_id: str, *, number: int, step: int) -> None:
        """Its log goes on with `number`, or further; nobody else changes the row before this
        transaction ends. Raises SessionGone where somebody else has ended the session."""
        given = {"session": session_id, "reached": number, "steps": step, "at": now()}
        found = cast(CursorResult[Any], await self._db.execute(_advance(), given))
        if found.rowcount == 0:
            raise SessionGone(session_id)

    async def require(self, session_id: str, *, lock: bool = False) -> TrainingSession:
        """Ended or not. Raises SessionGone where it was deleted."""
        found = await self._db.get(TrainingSession, session_id, with_for_update=lock or None)
        if found is None:
            raise SessionGone(session_id)
        return found

    async def require_live(self, session_id: str, *, lock: bool = False) -> TrainingSession:
        found = await self.require(session_id, lock=lock)
        if not found.is_live:
            raise SessionGone(session_id)
        return found
