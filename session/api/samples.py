"""From a request for samples to the worker's stream, for every wire that samples."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from registry.access.actor import Actor
from registry.kit.db import Database
from registry.kit.errors import Kind
from session import wire
from session.lifecycle.errors import WorkerAway
from session.operations.errors import InvalidBody
from session.sampling import service as sampling
from session.sampling.errors import SamplingFailed
from session.sampling.frames import Ask, Chunk, End, Error, Target
from session.sampling.model import SamplingRequest, SamplingStatus
from session.worker.channel import WorkerChannel


async def take_samples(
    database: Database, channel: WorkerChannel, actor: Actor, raw: bytes, *, json: bool
) -> wire.Samples:
    """Answer one request whole: from its row, if its token was answered before."""
    try:
        form = wire.unpack(raw, wire.Sampling, json=json)
    except wire.WireError as error:
        raise InvalidBody(str(error)) from None
    sampling.check(form)
    async with database.begin() as db:
        target = await sampling.resolve(db, actor, form)
        request = await sampling.accept(db, actor, form, target)
    if request.status == SamplingStatus.completed and request.result is not None:
        return wire.unpack(request.result, wire.Samples)
    if request.status == SamplingStatus.failed:
        raise _refused(request)
    async with channel.sample(Ask(request.id, request.account_id, form, target)) as frames:
        async for frame in frames:
            match frame:
                case End():
                    return frame.samples
                case Error():
                    raise SamplingFailed(Kind(frame.failure.kind), frame.failure.message)
    raise WorkerAway("it stopped while sampling")


def _refused(request: SamplingRequest) -> SamplingFailed:
    assert request.error is not None
    return SamplingFailed(Kind(request.error["kind"]), request.error["message"])


@asynccontextmanager
async def streamed(
    database: Database, channel: WorkerChannel, actor: Actor, form: wire.Sampling, target: Target
) -> AsyncIterator[AsyncIterator[Chunk]]:
    """Chunks as they come; leaving the block early cuts the request, which meters what was sent."""
    sampling.check(form)
    async with database.begin() as db:
        request = await sampling.accept(db, actor, form, target)

    async def chunks() -> AsyncGenerator[Chunk]:
        async for frame in frames:
            match frame:
                case Chunk():
                    yield frame
                case End():
                    return
                case Error():
                    raise SamplingFailed(Kind(frame.failure.kind), frame.failure.message)
        raise WorkerAway("it stopped while sampling")

    ask = Ask(request.id, request.account_id, form, target, is_streamed=True)
    async with channel.sample(ask) as frames, aclosing(chunks()) as found:
        yield found
