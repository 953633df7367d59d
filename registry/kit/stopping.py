"""How a server ends: requests that are held for news are answered, not cut."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from registry.kit.errors import Kind
from registry.kit.rest import problem

_GRACE_S = 1.0


class AnswersWhenStopping:
    """Once `stopping` is set, a request gets a moment more, and then 503 if it has no answer."""

    def __init__(self, app: ASGIApp, *, stopping: asyncio.Event) -> None:
        self._app = app
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        if await self._ended(asyncio.ensure_future(self._app(scope, receive, watched))):
            return
        if not has_begun:
            answer = problem(
                503,
                "Stopping",
                "the service is stopping; send the same request again once it is back",
                kind=Kind.unavailable,
                headers={"Retry-After": "2"},
            )
            await answer(scope, receive, send)

    async def _ended(self, work: asyncio.Future[None]) -> bool:
        """True when the request ended by itself; its own errors are raised."""
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((work, stop), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await asyncio.wait((work,), timeout=_GRACE_S)
            if work.done():
                await work
            return work.done()
        finally:
            stop.cancel()
            if not work.done():
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
