"""The keeper as `modelyard serve` runs it: a look around every minute, whatever the last met."""

import asyncio
from collections.abc import Awaitable
from datetime import datetime, timedelta

import structlog

from registry.artifacts.store import BlobStore
from registry.kit.clock import now
from registry.kit.db import Database
from registry.packages.keeper import Keeper
from registry.uploads.clearing import expire_due

log = structlog.get_logger()
_EVERY_S = 60.0


async def keep(database: Database, store: BlobStore, *, grace: timedelta) -> None:
    """Until cancelled."""
    keeper = Keeper(database, store, grace=grace)
    while True:
        at = now()
        await _survived(_versions(keeper, at))
        await _survived(_uploads(database, store, at))
        await asyncio.sleep(_EVERY_S)


async def _survived(work: Awaitable[None]) -> None:
    """A database or a store that is away will be back."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - whatever it is, the next round tries again
        await log.aexception("keeper.failed", exc_info=error)


async def _versions(keeper: Keeper, at: datetime) -> None:
    done = await keeper.round(at=at)
    if told := done.told():
        await log.ainfo("keeper.done", **told)


async def _uploads(database: Database, store: BlobStore, at: datetime) -> None:
    if expired := await expire_due(database, store, at=at):
        await log.ainfo("keeper.done", uploads_expired=expired)
