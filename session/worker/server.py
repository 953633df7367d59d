"""The worker's internal channel: loopback or a private network, opened by the secret of its row.
It wakes, waits and streams; whatever it carries may be lost."""

import asyncio
import hmac
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
import structlog
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from registry.kit.trouble import DatabaseTrouble
from session import wire
from session.sampling.frames import Ask, encode
from session.worker.line import LINE, Answered, Asked, Question, Wake
from session.worker.process import Worker

log = structlog.get_logger()
MAX_WAIT_S = 30.0
_WRONG_SECRET, _NO_SUCH_LINE = 4401, 4404


def create_channel(worker: Worker, *, secret: str) -> FastAPI:
    app = FastAPI(openapi_url=None)

    app.add_middleware(_Lines, worker=worker)
    app.add_middleware(_Locked, secret=secret)

    @app.post("/samples")
    async def samples(request: Request) -> StreamingResponse:
        ask = msgspec.msgpack.decode(await request.body(), type=Ask)
        return StreamingResponse(_frames(worker, ask), media_type="application/octet-stream")

    return app


class _Lines:
    """The other end of each `Line`. A message is an operation, so it comes before all that a router
    does."""

    def __init__(self, app: ASGIApp, *, worker: Worker) -> None:
        self._app = app
        self._worker = worker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            return await self._app(scope, receive, send)
        await receive()
        if scope["path"] != LINE:
            return await send({"type": "websocket.close", "code": _NO_SUCH_LINE})
        await send({"type": "websocket.accept"})
        answering: set[asyncio.Task[None]] = set()
        try:
            while (message := await receive())["type"] == "websocket.receive":
                asked = msgspec.msgpack.decode(message["bytes"], type=Asked)
                if isinstance(asked.what, Wake):
                    self._worker.wake(asked.what.session_id)
                    continue
                task = asyncio.create_task(self._answer(asked.number, asked.what, send))
                answering.add(task)
                task.add_done_callback(answering.discard)
        finally:
            for task in answering:
                task.cancel()

    async def _answer(self, number: int, question: Question, send: Send) -> None:
        seconds = min(question.seconds, MAX_WAIT_S)
        try:
            found = await self._worker.outcome(question.place, seconds, offer=question.offer)
        except DatabaseTrouble:
            found = None  # who asks reads the row itself, and tells of the trouble
        except Exception as error:  # the worker's edge: logged, and nobody waits for it in vain
            log.error("question.failed", operation=question.place.operation_id, exc_info=error)
            found = None
        packed = b"" if found is None else wire.pack(found)
        answer = msgspec.msgpack.encode(Answered(number, packed))
        await send({"type": "websocket.send", "bytes": answer})


class _Locked:
    """Nobody gets in without the secret."""

    def __init__(self, app: ASGIApp, *, secret: str) -> None:
        self._app = app
        self._key = f"Bearer {secret}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        given = Headers(scope=scope).get("authorization", "")
        if hmac.compare_digest(given.encode(), self._key):
            return await self._app(scope, receive, send)
        if scope["type"] == "websocket":
            await receive()
            return await send({"type": "websocket.close", "code": _WRONG_SECRET})
        await JSONResponse({"detail": "wrong secret"}, 401)(scope, receive, send)


async def _frames(worker: Worker, ask: Ask) -> AsyncGenerator[bytes]:
    async with aclosing(worker.sampling.stream(ask)) as frames:
        async for frame in frames:
            yield encode(frame)
            await asyncio.sleep(0)
