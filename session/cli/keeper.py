"""The keeper as `modelyard serve` runs it: a look around every minute, whatever the last met."""

import asyncio
from collections.abc import Awaitable
from datetime import datetime, timedelta

import structlog

from registry.artifacts.store import BlobStore
from registry.collection.service import collect
from registry.kit.clock import now
from registry.kit.db import Database
from registry.packages.keeper import Keeper
from registry.uploads.clearing import expire_due
from session.claims import CLAIMS
from session.endings.keeper import SessionKeeper
from session.endings.lifetimes import Lifetimes

log = structlog.get_logger()
_EVERY_S = 60.0
_FIRST_SWEEP = timedelta(hours=1)
_SWEEP_EVERY = timedelta(days=1)


async def keep(
    database: Database, store: BlobStore, *, grace: timedelta, lifetimes: Lifetimes
) -> None:
    """Until cancelled."""
    await asyncio.gather(
        _keep_sessions(database, store, lifetimes), _keep_versions(database, store, grace)
    )


async def _keep_sessions(database: Database, store: BlobStore, lifetimes: Lifetimes) -> None:
    """More often, where sessions are to end so soon that a minute would be long."""
    keeper = SessionKeeper(database, store, lifetimes, since=now())
    shortest_s = min(lifetimes.gap, lifetimes.idle).total_seconds()
    while True:
        await _survived(_sessions(keeper, now()))
        await asyncio.sleep(max(1.0, min(_EVERY_S, shortest_s / 4)))


async def _keep_versions(database: Database, store: BlobStore, grace: timedelta) -> None:
    keeper = Keeper(database, store, grace=grace)
    sweep_at = now() + _FIRST_SWEEP
    while True:
        at = now()
        await _survived(_versions(keeper, at))
        await _survived(_uploads(database, store, at))
        if at >= sweep_at:
            sweep_at = at + _SWEEP_EVERY
            await _survived(sweep(database, store))
        await asyncio.sleep(_EVERY_S)


async def _survived(work: Awaitable[None]) -> None:
    """A database or a store that is away will be back."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - whatever it is, the next round tries again
        await log.aexception("keeper.failed", exc_info=error)


async def _sessions(keeper: SessionKeeper, at: datetime) -> None:
    done = await keeper.round(at=at)
    if done.pruned:
        await log.ainfo("keeper.done", sessions_pruned=done.pruned)


async def _versions(keeper: Keeper, at: datetime) -> None:
    done = await keeper.round(at=at)
    if told := done.told():
        await log.ainfo("keeper.done", **told)


async def _uploads(database: Database, store: BlobStore, at: datetime) -> None:
    if expired := await expire_due(database, store, at=at):
        await log.ainfo("keeper.done", uploads_expired=expired)


async def sweep(database: Database, store: BlobStore) -> None:
    """Collect the garbage that is a day old."""
    found = await collect(database, store, CLAIMS, older_than=timedelta(days=1))
    if found.garbage or found.damaged:
        told = {"garbage_bytes": found.bytes_freed, "files_damaged": len(found.damaged)}
        await log.ainfo("keeper.done", **told)
