"""A worker: takes leases on sessions, runs each beside the others, merges, and serves sampling."""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from session import wire
from session.lifecycle.model import TrainingSession
from session.lifecycle.model import Worker as WorkerRow
from session.lifecycle.repository import WorkerRepository
from session.operations.model import Operation
from session.operations.service import as_wire
from session.worker.context import Context
from session.worker.line import Offer, Place
from session.worker.merging import merge_one
from session.worker.runner import SessionRunner
from session.worker.samples import Sampling

log = structlog.get_logger()
_POLL_S = 1.0
_HEARTBEAT_S = 5.0


class Worker:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._wake = asyncio.Event()
        self._runners: dict[str, SessionRunner] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._background: list[asyncio.Task[None]] = []
        self.sampling = Sampling(context, self._runners)
        self.broken = asyncio.Event()
        self._is_closed = False

    async def start(self, *, address: str, secret: str) -> None:
        async with self._context.database.begin() as db:
            worker_id = self._context.worker_id
            WorkerRepository(db).add(WorkerRow(id=worker_id, address=address, secret=secret))
        loops = (self._beat(), self._lease(), self._merge())
        self._background = [asyncio.create_task(self._keep_going(loop)) for loop in loops]
        log.info("worker.ready", worker=self._context.worker_id, address=address)

    async def close(self) -> None:
        """Stop between operations. What is being saved is finished; the log holds the rest."""
        self._is_closed = True
        runners, tasks = list(self._runners.values()), [*self._background, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(runner.drain() for runner in runners))
        async with self._context.database.begin() as db:
            await WorkerRepository(db).remove(self._context.worker_id)

    def wake(self, session_id: str | None) -> None:
        runner = self._runners.get(session_id or "")
        if runner is not None:
            runner.wake()
        else:
            self._wake.set()

    async def outcome(
        self, place: Place, seconds: float, *, offer: Offer | None = None
    ) -> wire.Operation | None:
        """What an operation has come to, once it has; None where that takes longer, or another
        worker is to say it.

        Listen first, then look: an end between the two is not missed.
        """
        if self._is_closed:
            return None
        async with self._context.done.listening(place.operation_id) as news:
            runner = self._runners.get(place.session_id)
            if runner is not None and offer is not None:
                runner.offer(offer.operation(place))
            else:
                self.wake(place.session_id)
            if runner is None or not runner.comes_to(place.number):
                found = await self._ended(place.operation_id)
                if found is not None:
                    return found
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await news.ended.wait()
            if not news.ended.is_set():
                return None
            return news.outcome or await self._ended(place.operation_id)

    async def _ended(self, operation_id: str) -> wire.Operation | None:
        async with self._context.database.read() as db:
            operation = await db.get(Operation, operation_id)
        return as_wire(operation) if operation is not None and operation.is_final else None

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT_S)
            await self._context.change(
                lambda db: WorkerRepository(db).beat(self._context.worker_id)
            )

    async def _lease(self) -> None:
        while True:
            self._wake.clear()
            await self._take()
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await self._wake.wait()

    async def _take(self) -> None:
        async def lease(db: AsyncSession) -> Sequence[TrainingSession]:
            taken = await WorkerRepository(db).unheld()
            for session in taken:
                session.worker_id = self._context.worker_id
                session.lease_epoch += 1
            return taken

        for session in await self._context.change(lease):
            log.info("session.leased", session=session.id, epoch=session.lease_epoch)
            runner = self._runners[session.id] = SessionRunner(self._context, session.id)
            task = self._tasks[session.id] = asyncio.create_task(runner.run())
            task.add_done_callback(partial(self._forget, session.id))

    def _forget(self, session_id: str, _: asyncio.Task[None]) -> None:
        if self._runners[session_id].ended.is_set():
            del self._runners[session_id], self._tasks[session_id]

    async def _merge(self) -> None:
        while True:
            if not await merge_one(self._context):
                await asyncio.sleep(_POLL_S)

    async def _keep_going(self, loop: Coroutine[Any, Any, None]) -> None:
        """A worker without one of its loops is no worker: it ends, and the log brings it back."""
        try:
            await loop
        except Exception as error:  # the worker's edge: logged, and told to the process
            log.critical("worker.loop_died", exc_info=error)
            self.broken.set()
