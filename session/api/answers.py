"""Answers in the one form of operations and samples, at once or as they come."""

import msgspec
from fastapi import Request, Response
from starlette.types import Message, Receive, Scope, Send

from session import wire
from session.operations.model import Operation
from session.operations.service import as_wire
from session.worker.channel import WorkerChannel
from session.worker.line import Offer, Place


def answer(request: Request, value: msgspec.Struct, *, status: int = 200) -> Response:
    """MessagePack for who accepts it, JSON for everybody else."""
    if wire.MEDIA in request.headers.get("accept", ""):
        return Response(wire.pack(value), status, media_type=wire.MEDIA)
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def acknowledged(
    request: Request, channel: WorkerChannel, accepted: Operation, wait: float
) -> Response:
    """An operation that is in the log, and what it came to where that is waited for."""
    if wire.FRAMES in request.headers.get("accept", ""):
        return _Followed(channel, accepted, wait)
    stored = as_wire(accepted)
    if not wait:
        channel.hint(stored.session)
        return answer(request, stored, status=202)
    packed = await _outcome(channel, accepted, wait)
    ended = wire.unpack(packed, wire.Operation) if packed else stored
    return answer(request, ended, status=202)


class _Followed(Response):
    """The operation as it was stored and, behind it, what it came to. Unlike a StreamingResponse it
    has no task that listens for who hangs up: it is over soon after `wait` in any case."""

    def __init__(self, channel: WorkerChannel, accepted: Operation, wait: float) -> None:
        super().__init__(status_code=202, media_type=wire.FRAMES)
        del self.headers["content-length"]
        self._asked = channel, accepted, wait

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        channel, accepted, wait = self._asked
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        await send(_part(wire.frame(wire.pack(as_wire(accepted))), more_body=True))
        packed = await _outcome(channel, accepted, wait)
        await send(_part(wire.frame(packed) if packed else b"", more_body=False))


def _part(body: bytes, *, more_body: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more_body}


async def _outcome(channel: WorkerChannel, accepted: Operation, wait: float) -> bytes | None:
    """Packed."""
    if accepted.is_final:
        return None
    place = Place(accepted.session_id, accepted.id, accepted.number)
    return await channel.outcome(place, wait, offer=Offer.of(accepted))
