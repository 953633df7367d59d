"""Waiting for what another task or process does."""

import asyncio
from collections.abc import Awaitable, Callable


async def until(holds: Callable[[], bool | Awaitable[bool]], *, seconds: float = 60.0) -> None:
    """Return when `holds` does; a TimeoutError is a failed test."""
    async with asyncio.timeout(seconds):
        while True:
            found = holds()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.02)
