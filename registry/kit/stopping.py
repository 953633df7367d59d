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
        self._limits: set[asyncio.Timeout] = set()
        self._watch: asyncio.Task[None] | None = None  # one for all: a task each would cost as much

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if self._watch is None:
            self._watch = asyncio.create_task(self._end_all())
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        limit = asyncio.timeout(_GRACE_S if self._stopping.is_set() else None)
        try:
            async with limit:
                self._limits.add(limit)
                await self._app(scope, receive, watched)
        except TimeoutError:
            if not limit.expired():
                raise
            if not has_begun:
                answer = problem(
                    503,
                    "Stopping",
                    "the service is stopping; send the same request again once it is back",
                    kind=Kind.unavailable,
                    headers={"Retry-After": "2"},
                )
                await answer(scope, receive, send)
        finally:
            self._limits.discard(limit)

    async def _end_all(self) -> None:
        await self._stopping.wait()
        for limit in self._limits:
            limit.reschedule(asyncio.get_running_loop().time() + _GRACE_S)
