"""The worker's internal channel: loopback or a private network, opened by the secret of its row.
It wakes, waits and streams; whatever it carries may be lost."""

import asyncio
import hmac
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from session.sampling.frames import Ask, encode
from session.worker.process import Worker

MAX_WAIT_S = 30.0


def create_channel(worker: Worker, *, secret: str) -> FastAPI:
    app = FastAPI(openapi_url=None)

    @app.middleware("http")
    async def locked(
        request: Request, follow: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {secret}".encode()):
            return JSONResponse({"detail": "wrong secret"}, 401)
        return await follow(request)

    @app.post("/wake")
    async def wake(session_id: str | None = None) -> dict[str, str]:
        worker.wake(session_id)
        return {"status": "awake"}

    @app.post("/wait/{operation_id}")
    async def wait(operation_id: str, seconds: float) -> dict[str, bool]:
        """True when the operation has ended."""
        return {"ended": await worker.wait(operation_id, min(seconds, MAX_WAIT_S))}

    @app.post("/samples")
    async def samples(request: Request) -> StreamingResponse:
        ask = msgspec.msgpack.decode(await request.body(), type=Ask)
        return StreamingResponse(_frames(worker, ask), media_type="application/octet-stream")

    return app


async def _frames(worker: Worker, ask: Ask) -> AsyncGenerator[bytes]:
    async with aclosing(worker.sampling.stream(ask)) as frames:
        async for frame in frames:
            yield encode(frame)
            await asyncio.sleep(0)
