"""How the api reaches the worker: wake, await an outcome, sample. Imports no engine."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from time import monotonic
from typing import TypeVar

import httpx
import msgspec

from registry.kit.db import Database
from registry.kit.trouble import DatabaseTrouble
from session.lifecycle.errors import WorkerAway
from session.lifecycle.model import Worker
from session.lifecycle.repository import WorkerRepository
from session.sampling.frames import Ask, Frame, decode
from session.worker.line import Line, Offer, Place, Question

T = TypeVar("T")
_KNOWN_S = 2.0


class WorkerChannel:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._held: Line | None = None
        self._known_until = 0.0
        self._opening: asyncio.Task[Line] | None = None
        self._kept: set[asyncio.Task[None]] = set()
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=2.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=False,  # never by a proxy
        )

    async def close(self) -> None:
        for task in self._kept:
            task.cancel()
        await asyncio.gather(*self._kept, return_exceptions=True)
        if self._held is not None:
            await self._held.close()
        await self._http.aclose()

    async def wake(self, session_id: str | None = None) -> None:
        """A hint. The worker also looks by itself, so a lost one costs a second."""
        with suppress(WorkerAway):
            await self._by_line(lambda line: line.wake(session_id))

    def hint(self, session_id: str | None = None) -> None:
        """The same, and nobody waits for it: a worker whose host is gone is one that never
        answers."""
        self._keep(asyncio.create_task(self._hint(session_id)))

    async def _hint(self, session_id: str | None) -> None:
        with suppress(DatabaseTrouble):
            await self.wake(session_id)

    async def outcome(
        self, place: Place, seconds: float, *, offer: Offer | None = None
    ) -> bytes | None:
        """Wake the session and wait for what the operation comes to: a `wire.Operation`, packed.
        None where the worker can't tell, or not yet. An `offer` is of what the log holds already.
        """
        end = monotonic() + seconds

        async def ask(line: Line) -> bytes:
            return await line.ask(Question(place, max(0.0, end - monotonic()), offer))

        try:
            return await self._by_line(ask) or None
        except WorkerAway:
            return None

    @asynccontextmanager
    async def sample(self, ask: Ask) -> AsyncIterator[AsyncIterator[Frame]]:
        """Frames of one request; leaving the block early cancels it on the worker."""
        worker = await self._newest()
        try:
            async with self._http.stream(
                "POST",
                f"{worker.address}/samples",
                content=msgspec.msgpack.encode(ask),
                headers={"Authorization": f"Bearer {worker.secret}"},
            ) as answer:
                answer.raise_for_status()
                async with aclosing(decode(answer.aiter_raw())) as frames:
                    yield frames
        except httpx.HTTPError as error:
            raise WorkerAway(type(error).__name__) from error

    async def _by_line(self, say: Callable[[Line], Awaitable[T]]) -> T:
        """By the line that is held, and else to the newest worker, which may be another one."""
        if (held := self._held) is not None and held.is_open and monotonic() < self._known_until:
            with suppress(WorkerAway):
                return await say(held)
            self._known_until = 0.0
        return await say(await self._line())

    async def _line(self) -> Line:
        """Opened once for all who want it at a time, who share its failure too."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)

    def _opened(self, opening: asyncio.Task[Line]) -> None:
        self._opening = None
        if not opening.cancelled():
            opening.exception()  # whoever still waits for it is told; it may be nobody

    async def _open(self) -> Line:
        held, worker = self._held, await self._newest()
        if held is None or not held.is_open or held.worker_id != worker.id:
            self._held = await Line.open(worker)
            if held is not None:
                self._keep(asyncio.create_task(held.retire()))
        self._known_until = monotonic() + _KNOWN_S
        assert self._held is not None
        return self._held

    async def _newest(self) -> Worker:
        async with self._database.read() as db:
            worker = await WorkerRepository(db).newest()
        if worker is None:
            raise WorkerAway("it is starting")
        return worker
