"""Queries on the log. Tenancy comes by the session, which the caller has looked up."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import cast

from sqlalchemy import Insert, Select, Table, Update, bindparam, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from registry.kit.clock import now
from session.lifecycle.errors import SessionGone
from session.lifecycle.model import TrainingSession
from session.operations.model import Operation, OperationStatus

_OPEN = (OperationStatus.pending, OperationStatus.running)


# Each is made once: making one takes longer than asking it. Those on a table, and not on its class,
# go past the bookkeeping of objects.


_TABLE = cast(Table, Operation.__table__)


@cache
def _due() -> Select[TrainingSession, Operation]:
    mine = (Operation.session_id == TrainingSession.id) & (Operation.number == bindparam("number"))
    return (
        select(TrainingSession, Operation)
        .outerjoin(Operation, mine & Operation.status.in_(_OPEN))
        .where(TrainingSession.id == bindparam("session"))
    )


@cache
def _add() -> Insert:
    return insert(_TABLE)


@cache
def _end() -> Update:
    return (
        update(_TABLE)
        .where(_TABLE.c.session_id == bindparam("session"), _TABLE.c.id == bindparam("operation"))
        .where(_TABLE.c.completed_at.is_(None))  # what has ended has ended for good
        .values(
            status=bindparam("ended"),
            result=bindparam("came_to"),
            error=bindparam("failed_by"),
            completed_at=bindparam("at"),
        )
    )


class OperationRepository:
    def __init__(self, db: AsyncSession, account_id: str) -> None:
        self._db = db
        self._account_id = account_id

    async def find(self, operation_id: str) -> Operation | None:
        if "\0" in operation_id:
            return None  # PostgreSQL refuses what a URL can hold
        query = (
            select(Operation)
            .join(TrainingSession, TrainingSession.id == Operation.session_id)
            .where(Operation.id == operation_id, TrainingSession.account_id == self._account_id)
        )
        return (await self._db.scalars(query)).one_or_none()


class LogRepository:
    """One session's operations."""

    def __init__(self, db: AsyncSession, session_id: str) -> None:
        self._db = db
        self._session_id = session_id

    async def add(self, operation: Operation) -> None:
        """Its row. The object is no part of the transaction."""
        names = Operation.__table__.columns.keys()
        await self._db.execute(_add(), {name: getattr(operation, name) for name in names})

    async def at(self, number: int) -> Operation | None:
        query = select(Operation).where(
            Operation.session_id == self._session_id, Operation.number == number
        )
        return (await self._db.scalars(query)).one_or_none()

    async def claim(self, number: int) -> None:
        """Taking it again is no error."""
        await self._db.execute(
            update(Operation)
            .where(Operation.session_id == self._session_id, Operation.number == number)
            .where(Operation.status.in_(_OPEN))
            .values(status=OperationStatus.running, started_at=now()),
            execution_options={"synchronize_session": False},
        )

    async def due(self, number: int) -> tuple[TrainingSession, Operation | None]:
        """The session, and its operation with this number if that is to be run. Raises SessionGone
        where somebody else has ended it."""
        given = {"session": self._session_id, "number": number}
        session, operation = (await self._db.execute(_due(), given)).one_or_none() or (None, None)
        if session is None or not session.is_live:
            raise SessionGone(self._session_id)
        return session, operation

    async def end(
        self,
        operation_id: str,
        status: OperationStatus,
        *,
        result: bytes | None = None,
        error: Mapping[str, str] | None = None,
    ) -> None:
        """Without reading it first, as its body may be large."""
        given = {"session": self._session_id, "operation": operation_id, "ended": status}
        ends = {"came_to": result, "failed_by": error, "at": now()}
        await self._db.execute(_end(), {**given, **ends})

    async def before(self, number: int, *, after: int, limit: int) -> Sequence[Operation]:
        query = (
            select(Operation)
            .where(Operation.session_id == self._session_id)
            .where(Operation.number > after, Operation.number < number)
            .order_by(Operation.number)
            .limit(limit)
        )
        return (await self._db.scalars(query)).all()

    async def skip_open(self, error: Mapping[str, str]) -> list[str]:
        """Without reading them, as their bodies may be large; their ids."""
        skipped = await self._db.scalars(
            update(Operation)
            .where(Operation.session_id == self._session_id, Operation.status.in_(_OPEN))
            .values(status=OperationStatus.skipped, error=error, completed_at=now())
            .returning(Operation.id),
            execution_options={"synchronize_session": False},
        )
        return list(skipped)

    async def skipped(self) -> Sequence[str]:
        query = select(Operation.id).where(
            Operation.session_id == self._session_id, Operation.status == OperationStatus.skipped
        )
        return (await self._db.scalars(query)).all()

    async def prune(self, *, after: int, limit: int) -> int | None:
        """Forget bodies and results of the next `limit` operations; the last one's number."""
        numbers = await self._db.scalars(
            update(Operation)
            .where(Operation.id.in_(self._next(after, limit)))
            .values(body=None, body_key=None, result=None)
            .returning(Operation.number),
            execution_options={"synchronize_session": False},
        )
        return max(numbers, default=None)

    async def remove(self, *, limit: int) -> bool:
        """Delete so many of them; whether there were any."""
        removed = await self._db.scalars(
            delete(Operation)
            .where(Operation.id.in_(self._next(-1, limit)))
            .returning(Operation.id),
            execution_options={"synchronize_session": False},
        )
        return bool(removed.all())

    def _next(self, after: int, limit: int) -> Select[str]:
        return (
            select(Operation.id)
            .where(Operation.session_id == self._session_id, Operation.number > after)
            .order_by(Operation.number)
            .limit(limit)
        )

    async def get(self, operation_id: str) -> Operation | None:
        return await self._db.get(Operation, operation_id)
