"""Does what is due without anybody asking: expiries, retention policies, purges.

All of it is in the rows, so it may die at any moment, and several may work on one database: each
piece of work is claimed, or decided by the row as it is when it is locked.
"""

from collections.abc import Awaitable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

import structlog

from registry.access.actor import Actor, Role
from registry.artifacts.errors import StoreUnavailable
from registry.artifacts.store import BlobStore
from registry.kit.db import Database
from registry.kit.trouble import DatabaseTrouble
from registry.packages import deletion, purges, retention
from registry.packages.keeper_repository import Due, DueRepository

T = TypeVar("T")

log = structlog.get_logger()
_MOST = 100  # of each sort in one round; the next goes on
_MOST_GROUPS = 20
POLICIES_EVERY = timedelta(hours=1)


@dataclass(slots=True)
class Round:
    """What one look around has done."""

    expired: int = 0
    removed: int = 0
    purged: int = 0
    freed: int = 0
    failed: int = 0

    def told(self) -> dict[str, int]:
        """What there is to tell; nothing most of the time."""
        return {name: count for name, count in asdict(self).items() if count}


class Keeper:
    def __init__(self, database: Database, store: BlobStore, *, grace: timedelta) -> None:
        self._database = database
        self._store = store
        self._grace = grace

    async def round(self, *, at: datetime) -> Round:
        """What fails is logged and counted, and keeps nothing else from being done."""
        done = Round()
        await self._expire(done, at)
        await self._apply_policies(done, at)
        await self._purge(done, at)
        return done

    async def _expire(self, done: Round, at: datetime) -> None:
        async with self._database.read() as db:
            due = await DueRepository(db).expiries(at=at, limit=_MOST)
        for each in due:
            if await safely(done, self._expire_one(each, at), about=str(each.ref)):
                done.expired += 1

    async def _expire_one(self, due: Due, at: datetime) -> bool:
        actor = _actor(due.account_id)
        async with self._database.begin() as db:
            return await deletion.expire(db, actor, due.ref, at=at, grace=self._grace)

    async def _apply_policies(self, done: Round, at: datetime) -> None:
        for _ in range(_MOST_GROUPS):
            async with self._database.begin() as db:
                group = await DueRepository(db).claim_group(
                    at=at, applied_before=at - POLICIES_EVERY
                )
            if group is None:
                return
            applied = retention.apply(
                self._database,
                _actor(group.account_id),
                group.name,
                at=at,
                grace=self._grace,
                dry_run=False,
                by=deletion.KEEPER,
            )
            report = await safely(done, applied, about=group.name)
            done.removed += report.removed if report else 0

    async def _purge(self, done: Round, at: datetime) -> None:
        async with self._database.read() as db:
            begun_before = at - deletion.PURGE_AGAIN_AFTER
            due = await DueRepository(db).purges(at=at, begun_before=begun_before, limit=_MOST)
        for each in due:
            actor = _actor(each.account_id)
            purge = purges.purge_due(self._database, self._store, actor, each.ref, at=at)
            package = await safely(done, purge, about=str(each.ref))
            if package is not None:
                done.purged += 1
                done.freed += package.freed or 0


class Failing(Protocol):
    failed: int


async def safely(done: Failing, work: Awaitable[T], *, about: str) -> T | None:
    """One of many of a round. A database or a store that is away ends the round: the rest would
    fail like this one."""
    try:
        return await work
    except (StoreUnavailable, DatabaseTrouble):
        raise
    except Exception as error:  # noqa: BLE001 - one of many: logged, and tried again later
        await log.aexception("keeper.failed", about=about, exc_info=error)
        done.failed += 1
        return None


def _actor(account_id: str) -> Actor:
    return Actor(account_id, Role.admin)
