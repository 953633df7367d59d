"""The courier of webhooks, as a part of `modelyard serve`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from registry.events.courier import Courier, Timing
from registry.kit.db import Database
from registry.settings import Settings
from session.resources import webhook_targets


@asynccontextmanager
async def delivering(settings: Settings, database: Database) -> AsyncIterator[asyncio.Task[None]]:
    chosen = settings.webhooks
    timing = Timing(timeout_s=chosen.timeout_s, keep=timedelta(days=chosen.keep_days))
    courier = Courier(database, webhook_targets(settings), timing=timing)
    task = asyncio.create_task(courier.run(), name="courier")
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await courier.close()
