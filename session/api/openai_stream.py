"""Answers that end when the client goes away, and what has to happen then."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import anyio
from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from registry.kit.errors import Kind, ServiceError

T = TypeVar("T")


class ClientGone(ServiceError):
    """Nobody reads this, but the request has to end somehow."""

    kind = Kind.unavailable

    def __init__(self) -> None:
        super().__init__("the client closed the connection")


class EventStream(StreamingResponse):
    """Server-sent events. `ended` is awaited however the stream ends, and can't be cut off."""

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[bytes], *, ended: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._events = events
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await close(self._events)
                await self._ended()


async def close(iterator: AsyncIterator[Any]) -> None:
    """Cancels what an asynchronous generator still does; other iterators have nothing to end."""
    end = getattr(iterator, "aclose", None)
    if end is not None:
        await end()


async def attended(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client goes away."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
