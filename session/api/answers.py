"""Answers in the one form of operations and samples, at once or as they come."""

from collections.abc import AsyncGenerator

import msgspec
from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from session import wire
from session.worker.channel import Place, WorkerChannel

_UNDECIDED = ("pending", "running")


def answer(request: Request, value: msgspec.Struct, *, status: int = 200) -> Response:
    """MessagePack for who accepts it, JSON for everybody else."""
    if wire.MEDIA in request.headers.get("accept", ""):
        return Response(wire.pack(value), status, media_type=wire.MEDIA)
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def acknowledged(
    request: Request, channel: WorkerChannel, stored: wire.Operation, wait: float
) -> Response:
    """An operation that is in the log, and what it came to where that is waited for."""
    if wire.FRAMES in request.headers.get("accept", ""):
        return StreamingResponse(_followed(channel, stored, wait), 202, media_type=wire.FRAMES)
    if not wait:
        await channel.wake(stored.session)
        return answer(request, stored, status=202)
    ended = await _outcome(channel, stored, wait)
    return answer(request, ended or stored, status=202)


async def _followed(
    channel: WorkerChannel, stored: wire.Operation, wait: float
) -> AsyncGenerator[bytes]:
    yield wire.frame(wire.pack(stored))
    ended = await _outcome(channel, stored, wait)
    if ended is not None:
        yield wire.frame(wire.pack(ended))


async def _outcome(
    channel: WorkerChannel, stored: wire.Operation, wait: float
) -> wire.Operation | None:
    if stored.status not in _UNDECIDED:
        return None
    return await channel.outcome(Place(stored.session, stored.id, stored.number), wait)
