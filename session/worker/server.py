"""The worker's internal channel: loopback or a private network, opened by the secret of its row.
It wakes, waits and streams; whatever it carries may be lost."""

import asyncio
import hmac
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from session import wire
from session.sampling.frames import Ask, encode
from session.worker.channel import Question
from session.worker.process import Worker

MAX_WAIT_S = 30.0


def create_channel(worker: Worker, *, secret: str) -> FastAPI:
    app = FastAPI(openapi_url=None)

    app.add_middleware(_Outcomes, worker=worker)
    app.add_middleware(_Locked, secret=secret)

    @app.post("/wake")
    async def wake(session_id: str | None = None) -> dict[str, str]:
        worker.wake(session_id)
        return {"status": "awake"}

    @app.post("/samples")
    async def samples(request: Request) -> StreamingResponse:
        ask = msgspec.msgpack.decode(await request.body(), type=Ask)
        return StreamingResponse(_frames(worker, ask), media_type="application/octet-stream")

    return app


class _Outcomes:
    """`POST /outcomes`: what an operation came to; 204 where it has not ended by then. It is asked
    for once an operation, so it comes before all that a router does."""

    def __init__(self, app: ASGIApp, *, worker: Worker) -> None:
        self._app = app
        self._worker = worker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/outcomes":
            return await self._app(scope, receive, send)
        body = await Request(scope, receive).body()
        asked = msgspec.msgpack.decode(body, type=Question)
        seconds = min(asked.seconds, MAX_WAIT_S)
        found = await self._worker.outcome(asked.place, seconds, offer=asked.offer)
        answer = Response(status_code=204) if found is None else Response(wire.pack(found))
        await answer(scope, receive, send)


class _Locked:
    """Nobody gets in without the secret."""

    def __init__(self, app: ASGIApp, *, secret: str) -> None:
        self._app = app
        self._key = f"Bearer {secret}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = Headers(scope=scope).get("authorization", "")
        if hmac.compare_digest(given.encode(), self._key):
            return await self._app(scope, receive, send)
        await JSONResponse({"detail": "wrong secret"}, 401)(scope, receive, send)


async def _frames(worker: Worker, ask: Ask) -> AsyncGenerator[bytes]:
    async with aclosing(worker.sampling.stream(ask)) as frames:
        async for frame in frames:
            yield encode(frame)
            await asyncio.sleep(0)
