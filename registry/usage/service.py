"""The ledger of tokens: written with the operation it meters, read as sums."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.kit.clock import now
from registry.kit.ids import new_id
from registry.kit.pages import Cursors, Page
from registry.usage.errors import InvalidUsage
from registry.usage.model import Category
from registry.usage.repository import Sums, UsageRepository

Tokens = dict[Category, int]


class Width(StrEnum):
    hour = "1h"
    day = "1d"

    @property
    def seconds(self) -> int:
        return {Width.hour: 3600, Width.day: 86400}[self]


class GroupBy(StrEnum):
    session = "session"
    model = "model"


@dataclass(frozen=True, slots=True)
class Group:
    """What one session, one model or everything used in a span."""

    key: str | None
    requests: int
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class Bucket:
    start: datetime
    end: datetime
    groups: list[Group] = field(default_factory=list)


async def record(
    db: AsyncSession,
    *,
    account_id: str,
    operation_id: str,
    model: str,
    counts: Mapping[Category, int],
    session_id: str | None = None,
    deployment: str | None = None,
) -> None:
    """Meter an operation, once: recording it again changes nothing."""
    if any(tokens < 0 for tokens in counts.values()):
        raise InvalidUsage("counts", "a number of tokens is never negative")
    fact = {
        "account_id": account_id,
        "operation_id": operation_id,
        "model": model,
        "session_id": session_id,
        "deployment": deployment,
        "created_at": now(),
    }
    rows = [
        {"id": new_id("use"), "category": category, "tokens": tokens, **fact}
        for category, tokens in counts.items()
        if tokens
    ]
    if rows:
        await UsageRepository(db, account_id).add(rows)


async def totals(db: AsyncSession, actor: Actor, *, session_id: str | None = None) -> Tokens:
    return _tokens(await UsageRepository(db, actor.account_id).sums(session_id=session_id))


async def by_session(db: AsyncSession, actor: Actor) -> dict[str, Tokens]:
    """Oldest session first; what belongs to none, as a deployment's traffic, is left out."""
    rows = await UsageRepository(db, actor.account_id).sums_by_session()
    return {row.key: _tokens(row) for row in rows}


async def buckets(
    db: AsyncSession,
    actor: Actor,
    *,
    start: datetime,
    end: datetime,
    width: Width = Width.day,
    group_by: GroupBy | None = None,
    session_id: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[Bucket]:
    """Spans of UTC from the one that `start` lies in, oldest first, empty ones too.

    A cursor stands in for `start`, which may be counted from a clock that has moved on.
    """
    cursors = Cursors((int,), ("usage", actor.account_id, width, group_by, session_id))
    position = cursors.read(cursor)
    first = max(int(position[0]) if position else _epoch(start), 0)
    begin = first // width.seconds * width.seconds
    if end <= start:
        raise InvalidUsage("end", "is not after start")
    begins = range(begin, _epoch(end - timedelta(microseconds=1)) + 1, width.seconds)
    spans = {at: _bucket(at, width) for at in begins[:limit]}
    if spans:
        rows = await UsageRepository(db, actor.account_id).sums_by_time(
            start=_moment(begin),
            end=_moment(begin + len(spans) * width.seconds),
            width_s=width.seconds,
            group_by=group_by,
            session_id=session_id,
        )
        for row in rows:
            spans[int(row.begin)].groups.append(Group(row.key, row.requests, _tokens(row)))
    return Page(
        list(spans.values()), cursors.write((begins[limit],)) if len(begins) > limit else None
    )


def _bucket(begin: int, width: Width) -> Bucket:
    return Bucket(_moment(begin), _moment(begin + width.seconds))


def _epoch(moment: datetime) -> int:
    return int(moment.timestamp() // 1)


def _moment(epoch: int) -> datetime:
    return datetime.fromtimestamp(epoch, UTC)


def _tokens(row: Sums) -> Tokens:
    return {category: int(getattr(row, category)) for category in Category}
