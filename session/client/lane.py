"""The numbered operations of one session: sent one after another, awaited concurrently.

An operation gets its number when it is really sent, so nothing that fails before it is stored
leaves a gap.
"""

import asyncio
import concurrent.futures
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from session import wire
from session.client.connection import WAIT_S, Connection
from session.client.errors import (
    ClientClosed,
    ConnectionFailed,
    IncompleteGradient,
    InvalidInput,
    OperationFailed,
    OutcomeUnknown,
)
from session.client.following import Following
from session.client.future import APIFuture
from session.client.records import SessionInfo

T = TypeVar("T")
log = logging.getLogger("modelyard")

# Sending ends with the coroutine that awaits the outcome.
Work = Callable[[], Awaitable[Coroutine[Any, Any, T]]]

_UNDECIDED = ("pending", "running")
_FIRST_WAIT_S = 5  # before a look at the session
_PAUSE_S = 0.05  # between two questions, in case the service does not hold them
_AWAITED_AT_ONCE = 8  # operations complete in order: the oldest few are enough to ask for
_held: ContextVar["Lane | None"] = ContextVar("held", default=None)

# What would end the task or the loop that it is raised in, or a coroutine could not pass on.
_MISREAD = (
    asyncio.CancelledError,
    concurrent.futures.CancelledError,
    GeneratorExit,
    KeyboardInterrupt,
    StopIteration,
    SystemExit,
)


@dataclass(frozen=True)
class _Job:
    work: Work[Any]
    future: "concurrent.futures.Future[Any]"
    adds_gradient: bool


class Lane:
    def __init__(self, connection: Connection, session: str, last_number: int) -> None:
        self._connection = connection
        self._session = session
        self._path = f"/v1/sessions/{session}"
        self._next = last_number + 1
        self._queue: asyncio.Queue[_Job] = asyncio.Queue()
        self._asking = asyncio.Semaphore(_AWAITED_AT_ONCE)
        self._unsettled: wire.Submission | None = None
        self._gradient_is_incomplete = False
        self._restoring = self._blocked = False
        self._followed = 0
        self._look_at = 0.0
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        connection.background.call(connection.background.spawn, self._serve(), self._ended)

    def submit(self, work: Work[T], what: str, *, adds_gradient: bool = False) -> APIFuture[T]:
        """Queue `work` behind everything submitted before it, from whatever thread."""
        if _held.get() is self:
            raise InvalidInput("a custom loss cannot call the training client that waits for it")
        job = _Job(work, concurrent.futures.Future(), adds_gradient)
        self._connection.background.call(self._queue.put_nowait, job)
        return self._connection.background.calls.add(job.future, what)

    def operate(self, body: wire.Body, read: Callable[[wire.Operation], T]) -> APIFuture[T]:
        async def work() -> Coroutine[Any, Any, T]:
            return self._read_outcome(await self.send(body), read)

        return self.submit(work, _named(body), adds_gradient=isinstance(body, wire.ForwardBackward))

    async def send(self, body: wire.Body, *, is_followed: bool = True) -> Following:
        """Have the next operation stored. Only within submitted work."""
        await self._settle()
        if isinstance(body, wire.OptimStep) and self._gradient_is_incomplete:
            await self.send(wire.ClearGradient(), is_followed=False)
            raise IncompleteGradient
        submission = wire.Submission(self._next, uuid.uuid4().hex, body)
        self._unsettled = submission
        sent = await self._store(submission, is_followed=is_followed)
        self._unsettled = None
        self._next += 1
        if isinstance(body, wire.ClearGradient | wire.Load):
            self._gradient_is_incomplete = False
        return sent

    async def _store(self, submission: wire.Submission, *, is_followed: bool) -> Following:
        """Of many that are under way, those behind the oldest few are asked for later."""
        path = f"{self._path}/operations"
        if not is_followed or self._followed >= _AWAITED_AT_ONCE:
            return Following(await self._connection.send(path, submission, wire.Operation))
        return await self._connection.follow(path, submission, wait_s=_FIRST_WAIT_S)

    async def outcome(self, sent: Following) -> wire.Operation:
        """Wait until it is completed. Raises OperationFailed."""
        self._followed += 1
        try:
            operation = await sent.ended() or sent.stored
        finally:
            self._followed -= 1
        path, wait_s = f"/v1/operations/{operation.id}", _FIRST_WAIT_S
        if sent.was_held and operation.status in _UNDECIDED:
            await self._look()
        async with self._asking:
            while operation.status in _UNDECIDED:
                operation = await self._connection.outcome(path, wire.Operation, wait_s)
                wait_s = WAIT_S
                if operation.status in _UNDECIDED:
                    await self._look()
                    await asyncio.sleep(_PAUSE_S)
        if operation.status == "completed" and operation.error is None:
            return operation
        error = operation.error or wire.Failure(operation.status, f"{operation.kind} did not run")
        raise OperationFailed(operation.id, error.kind, error.message)

    async def _look(self) -> None:
        """Say once, while an operation takes long, that this is because of a lost worker, or of
        an operation before it that was never sent."""
        now = asyncio.get_running_loop().time()
        if now < self._look_at:
            return
        self._look_at = now + WAIT_S
        info = await self._connection.get(self._path, SessionInfo)
        if info.restoring and not self._restoring:
            log.warning(
                "session %s is being brought back from its log; this takes about as long as it "
                "has trained",
                info.name or info.id,
            )
        self._restoring = info.restoring
        if info.missing_number is not None and not self._blocked:
            log.warning(
                "session %s is blocked: operation %d is missing, and those behind it wait for it",
                info.name or info.id,
                info.missing_number,
            )
        self._blocked = info.missing_number is not None

    async def outside(self, function: Callable[..., T], *args: object) -> T:
        """Run a caller's function in a thread, with this lane marked as held by it."""
        mark = _held.set(self)
        try:
            return await asyncio.to_thread(_contained, function, *args)
        finally:
            _held.reset(mark)

    async def _read_outcome(self, sent: Following, read: Callable[[wire.Operation], T]) -> T:
        return read(await self.outcome(sent))

    async def _settle(self) -> None:
        """After a failed send: was it stored all the same? If not, its number is free again."""
        if self._unsettled is None:
            return
        found = await self._connection.get(self._path, SessionInfo)
        if found.last_number >= self._unsettled.number:
            kind = _tag(self._unsettled.body)
            raise OutcomeUnknown(self._session, self._unsettled.number, kind)
        self._unsettled = None

    async def _serve(self) -> None:
        try:
            while True:
                await self._do(await self._queue.get())
        finally:
            self._drop_queue(ClientClosed)

    async def _do(self, job: _Job) -> None:
        try:
            outcome = await job.work()
        except (asyncio.CancelledError, GeneratorExit):
            job.future.set_exception(ClientClosed())
            raise
        except BaseException as error:  # noqa: BLE001 - it is raised by result()
            self._gradient_is_incomplete |= job.adds_gradient
            job.future.set_exception(error)
            if isinstance(error, ConnectionFailed):
                # What is queued behind it was submitted in the belief that this one would run.
                url = error.url
                self._drop_queue(lambda: ConnectionFailed(url, "not sent, the call before failed"))
        else:
            self._connection.background.spawn(outcome, job.future)

    def _drop_queue(self, error: Callable[[], Exception]) -> None:
        while not self._queue.empty():
            job = self._queue.get_nowait()
            self._gradient_is_incomplete |= job.adds_gradient
            job.future.set_exception(error())


def _contained(function: Callable[..., T], *args: object) -> T:
    try:
        return function(*args)
    except _MISREAD as error:
        raise RuntimeError(f"the custom loss raised {type(error).__name__}: {error}") from error


def _tag(body: wire.Body) -> str:
    return str(type(body).__struct_config__.tag)


def _named(body: wire.Body) -> str:
    return f"save of {body.kind}" if isinstance(body, wire.Save) else _tag(body)
