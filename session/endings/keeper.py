"""Ends sessions that nobody ends: idle, too old, or waiting for an operation that never comes. It
needs no worker: the row says it, and a worker that holds the session lets go when it looks there.

Each end is decided again under the lock of its row, so it never meets an operation that is just
being accepted, and several keepers may work on one database.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from sqlalchemy import ColumnElement

from registry.artifacts.store import BlobStore
from registry.kit.db import Database
from registry.packages.keeper import safely
from session.endings import service
from session.endings.lifetimes import Lifetimes, spoken
from session.endings.repository import DueRepository, is_idle, is_old, waits_in_vain
from session.lifecycle.errors import SessionGone
from session.lifecycle.model import Status, TrainingSession

log = structlog.get_logger()
_MOST = 100  # of each sort in one round; the next goes on
_BREAK = timedelta(minutes=5)  # several rounds


@dataclass(frozen=True, slots=True)
class _Rule:
    """`is_fair`: whoever it is about must have been able to prevent it, so only time in which the
    service was there counts."""

    status: Status
    span: timedelta
    is_due: Callable[[datetime], ColumnElement[bool]]
    why: Callable[[TrainingSession], str]
    is_fair: bool = True


@dataclass(slots=True)
class Round:
    ended: int = 0
    pruned: int = 0
    failed: int = 0


class SessionKeeper:
    """`since` is when the service began to answer. A machine that was asleep, or a clock that
    jumped, begins anew."""

    def __init__(
        self, database: Database, store: BlobStore, lifetimes: Lifetimes, *, since: datetime
    ) -> None:
        self._database = database
        self._store = store
        self._lifetimes = lifetimes
        self._since = self._looked_at = since
        self._rules = _rules(lifetimes)

    async def round(self, *, at: datetime) -> Round:
        """What fails is logged and counted, and keeps nothing else from being done."""
        if not timedelta(0) <= at - self._looked_at <= _BREAK:
            self._since = at
        self._looked_at = at
        done = Round()
        for rule in self._rules:
            if not rule.is_fair or self._since <= at - rule.span:
                await self._apply(rule, at - rule.span, done)
        await self._prune(at - self._lifetimes.results, done)
        return done

    async def _apply(self, rule: _Rule, since: datetime, done: Round) -> None:
        is_due = rule.is_due(since)
        async with self._database.read() as db:
            due = await DueRepository(db).sessions(is_due, limit=_MOST)
        for session_id in due:
            if await safely(done, self._end(session_id, rule, is_due), about=session_id):
                done.ended += 1

    async def _end(self, session_id: str, rule: _Rule, is_due: ColumnElement[bool]) -> bool:
        async with self._database.begin() as db:
            session = await DueRepository(db).locked(session_id, is_due)
            if session is None:
                return False
            why = rule.why(session)
            await service.end(db, session, rule.status, why=why)
        await log.ainfo("session.ended", session=session_id, status=rule.status, why=why)
        return True

    async def _prune(self, ended_before: datetime, done: Round) -> None:
        async with self._database.read() as db:
            due = await DueRepository(db).unpruned(ended_before=ended_before, limit=_MOST)
        for session in due:
            pruning = self._pruned(session)
            if await safely(done, pruning, about=session.id):
                done.pruned += 1

    async def _pruned(self, session: TrainingSession) -> bool:
        try:
            await service.prune(self._database, self._store, session)
        except SessionGone:  # deleted since
            return False
        return True


def _rules(lifetimes: Lifetimes) -> tuple[_Rule, ...]:
    gap, idle, age = (spoken(each) for each in (lifetimes.gap, lifetimes.idle, lifetimes.age))
    return (
        _Rule(
            Status.failed,
            lifetimes.gap,
            waits_in_vain,
            lambda session: (
                f"operation {session.next_number} is missing; those behind it waited {gap}"
            ),
        ),
        _Rule(
            Status.expired, lifetimes.idle, is_idle, lambda _: f"nothing was asked of it for {idle}"
        ),
        _Rule(
            Status.expired,
            lifetimes.age,
            is_old,
            lambda _: f"it is {age} old, the maximum",
            is_fair=False,
        ),
    )
