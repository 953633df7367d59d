"""Sampling on this worker: find the weights, stream from the engine, keep and meter the answer."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from registry.artifacts.manifest import FileEntry
from registry.kit.errors import Kind, ServiceError
from session import wire
from session.checkpoints import Stored
from session.engine.port import EngineError
from session.lifecycle.errors import WorkerAway
from session.sampling import service as sampling
from session.sampling.frames import Ask, Chunk, End, Error, Frame, Gathering, from_engine
from session.sampling.repository import require_request
from session.worker.context import Adapters, Context, failure
from session.worker.runner import SessionRunner

log = structlog.get_logger()
_LIVE_S = 120.0


class Sampling:
    def __init__(self, context: Context, runners: Mapping[str, SessionRunner]) -> None:
        self._context = context
        self._runners = runners
        self._adapters = Adapters(context)
        self._in_flight: set[str] = set()

    async def stream(self, ask: Ask) -> AsyncGenerator[Frame]:
        """Chunks as they come, then the whole, or why there is none."""
        if ask.request_id in self._in_flight:
            yield Error(wire.Failure(Kind.unavailable, "this request is running; ask again"))
            return
        form = ask.form
        gathering = Gathering(ask.request_id, prompt_tokens=form.prompt.array().size, n=form.n)
        self._in_flight.add(ask.request_id)
        is_settled = False
        try:
            async with aclosing(self._chunks(ask)) as chunks:
                async for chunk in chunks:
                    gathering.add(chunk)
                    yield chunk
            await self._complete(ask, gathering.samples(), is_cut=False)
            is_settled = True
            yield End(gathering.samples())
        except Exception as error:  # the worker's edge: reported and logged
            if not isinstance(error, EngineError | ServiceError):
                log.error("sampling.failed", request=ask.request_id, exc_info=error)
            is_settled = True
            why = failure(error)
            if why.kind != Kind.unavailable:  # that may be over when the request is sent again
                await self._fail(ask, why)
            yield Error(why)
        finally:
            self._in_flight.discard(ask.request_id)
            # The reader went away. One that got nothing yet may ask again and is answered anew.
            if ask.is_streamed and not is_settled:
                await asyncio.shield(self._complete(ask, gathering.samples(), is_cut=True))

    async def _chunks(self, ask: Ask) -> AsyncGenerator[Chunk]:
        async with AsyncExitStack() as stack:
            await self._ready(ask, stack)
            request = sampling.engine_request(ask.form, ask.target, ask.account_id)
            stream = self._context.engine.sample(request)
            stack.push_async_callback(stream.aclose)  # type: ignore[attr-defined]  # a generator
            async for chunk in stream:
                yield from_engine(chunk)

    async def _ready(self, ask: Ask, stack: AsyncExitStack) -> None:
        """Wait for a session that is coming back; load a version or sampler weights."""
        target = ask.target
        if target.kind == "session":
            assert target.weights is not None
            await self._live(target.weights)
            return
        base = await self._context.bases.ready(target.base_name)
        if target.kind == "base":
            return
        assert target.weights is not None
        files = [FileEntry(path, size, sha256) for path, size, sha256 in target.files]
        found = Stored(target.weights, target.prefix, files)
        await stack.enter_async_context(self._adapters.using(target.weights, base, found))

    async def _live(self, session_id: str) -> None:
        runner = self._runners.get(session_id)
        if runner is None:
            raise WorkerAway("it does not hold this session yet")
        try:
            async with asyncio.timeout(_LIVE_S):
                await runner.live.wait()
        except TimeoutError:
            raise WorkerAway("the session is still being restored") from None

    async def _complete(self, ask: Ask, samples: wire.Samples, *, is_cut: bool) -> None:
        async def complete(db: AsyncSession) -> None:
            request = await require_request(db, ask.request_id)
            await sampling.complete(db, request, samples, is_cut=is_cut)

        await self._context.change(complete)

    async def _fail(self, ask: Ask, why: wire.Failure) -> None:
        async def fail(db: AsyncSession) -> None:
            sampling.fail(await require_request(db, ask.request_id), why)

        await self._context.change(fail)
