"""A courier of webhooks: in this process for as long as a block runs, or as one of its own."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import registry.access.model  # noqa: F401  # whose accounts events belong to
from registry.events.courier import Courier, Timing
from registry.events.targets import Targets
from registry.kit.db import Database

LOOPBACK = Targets(allow_private=True)


@asynccontextmanager
async def delivering(
    database: Database, targets: Targets = LOOPBACK, timing: Timing | None = None
) -> AsyncIterator[None]:
    courier = Courier(database, targets, timing=timing or Timing(poll_s=0.05))
    running = asyncio.create_task(courier.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await courier.close()


async def main(url: str) -> None:
    async with delivering(Database.connect(url)):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
