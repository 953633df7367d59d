"""Hold an answer until there is news, without holding a database connection."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeVar

from registry.access.actor import Actor
from registry.kit.db import Database
from session.operations import service as operations
from session.operations.model import Operation
from session.worker.channel import WorkerChannel
from session.worker.line import Place

T = TypeVar("T")
_POLL_S = 0.1


async def until(look: Callable[[], Awaitable[T | None]], seconds: float) -> T | None:
    """Look again and again until there is something, or time is up."""
    end = monotonic() + seconds
    while True:
        found = await look()
        if found is not None or monotonic() >= end:
            return found
        await asyncio.sleep(_POLL_S)


async def operation_once_ended(
    database: Database, channel: WorkerChannel, actor: Actor, operation_id: str, seconds: float
) -> Operation:
    """The worker says when; the row says what. Without a worker, the row is polled."""
    end = monotonic() + seconds
    while True:
        async with database.read() as db:
            found = await operations.require_operation(db, actor, operation_id)
        rest = end - monotonic()
        if found.is_final or rest <= 0:
            return found
        place = Place(found.session_id, operation_id, found.number)
        if await channel.outcome(place, rest) is None:
            await asyncio.sleep(min(_POLL_S, rest))
