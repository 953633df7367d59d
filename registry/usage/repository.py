from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, case, distinct, extract, func, null, select
from sqlalchemy.ext.asyncio import AsyncSession

from registry.kit.rows import dialect_of, insert_missing
from registry.usage.model import Category, UsageEvent

Query = Select[*tuple[Any, ...]]
Sums = Row[*tuple[Any, ...]]

_GROUPS: Mapping[str | None, ColumnElement[Any]] = {
    None: null(),
    "session": UsageEvent.session_id.expression,
    "model": UsageEvent.model.expression,
}


class UsageRepository:
    """Queries on one account's ledger."""

    def __init__(self, db: AsyncSession, account_id: str) -> None:
        self._db = db
        self._account_id = account_id

    async def add(self, rows: Sequence[Mapping[str, object]]) -> None:
        """A fact that is in the ledger already stays as it is."""
        await self._db.execute(insert_missing(dialect_of(self._db), UsageEvent), rows)

    async def sums(self, *, session_id: str | None) -> Sums:
        query: Query = select(*_sums())
        return (await self._db.execute(self._mine(query, session_id))).one()

    async def sums_by_session(self) -> Sequence[Sums]:
        query: Query = (
            select(UsageEvent.session_id.label("key"), *_sums())
            .where(UsageEvent.session_id.is_not(None))
            .group_by(UsageEvent.session_id)
            .order_by(UsageEvent.session_id)
        )
        return (await self._db.execute(self._mine(query, None))).all()

    async def sums_by_time(
        self,
        *,
        start: datetime,
        end: datetime,
        width_s: int,
        group_by: str | None,
        session_id: str | None,
    ) -> Sequence[Sums]:
        """One row for each span that has events and each group; `begin` in seconds since 1970."""
        seconds = extract("epoch", UsageEvent.created_at)
        begin = (seconds - seconds % width_s).label("begin")
        key = _GROUPS[group_by].label("key")
        requests = func.count(distinct(UsageEvent.operation_id)).label("requests")
        query: Query = (
            select(begin, key, requests, *_sums())
            .where(UsageEvent.created_at >= start, UsageEvent.created_at < end)
            .group_by("begin", "key")
            .order_by("begin", "key")
        )
        return (await self._db.execute(self._mine(query, session_id))).all()

    def _mine(self, query: Query, session_id: str | None) -> Query:
        mine = query.where(UsageEvent.account_id == self._account_id)
        return mine if session_id is None else mine.where(UsageEvent.session_id == session_id)


def _sums() -> list[ColumnElement[int]]:
    """One column for each category; a sum of nothing is 0."""
    return [
        func.coalesce(
            func.sum(case((UsageEvent.category == category, UsageEvent.tokens), else_=0)), 0
        ).label(category)
        for category in Category
    ]
