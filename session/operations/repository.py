"""Queries on the log. Tenancy comes by the session, which the caller has looked up."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import cast

from sqlalchemy import Insert, Select, Table, Update, bindparam, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from registry.kit.clock import now
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
        """The session, and its operation with this number if that is to be run."""
        given = {"session": self._session_id, "number": number}
        session, operation = (await self._db.execute(_due(), given)).one()
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

    async def open(self) -> Sequence[Operation]:
        query = select(Operation).where(
            Operation.session_id == self._session_id,
            Operation.status.in_(_OPEN),
        )
        return (await self._db.scalars(query.order_by(Operation.number))).all()

    async def require(self, operation_id: str) -> Operation:
        return await self._db.get_one(Operation, operation_id)
