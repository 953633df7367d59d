"""Queries on the log. Tenancy comes by the session, which the caller has looked up."""

from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from registry.kit.clock import now
from session.lifecycle.model import TrainingSession
from session.operations.model import Operation, OperationStatus


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

    def add(self, operation: Operation) -> None:
        self._db.add(operation)

    async def at(self, number: int) -> Operation | None:
        query = select(Operation).where(
            Operation.session_id == self._session_id, Operation.number == number
        )
        return (await self._db.scalars(query)).one_or_none()

    async def claim(self, number: int) -> Operation | None:
        """Take the operation with this number, if it is there. Taking it again is no error."""
        query = (
            update(Operation)
            .where(Operation.session_id == self._session_id, Operation.number == number)
            .where(Operation.status.in_((OperationStatus.pending, OperationStatus.running)))
            .values(status=OperationStatus.running, started_at=now())
            .returning(Operation)
        )
        return (await self._db.scalars(query)).one_or_none()

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
            Operation.status.in_((OperationStatus.pending, OperationStatus.running)),
        )
        return (await self._db.scalars(query.order_by(Operation.number))).all()

    async def require(self, operation_id: str) -> Operation:
        return await self._db.get_one(Operation, operation_id)
