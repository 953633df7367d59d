"""One session on this worker: bring it back from its log, then run what comes, in order."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TypeVar

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from registry.kit.errors import Kind, ServiceError
from registry.packages import service as packages
from registry.packages.limits import check_description, check_metadata, check_metrics
from registry.packages.service import PackageRef
from session import wire
from session.checkpoints import (
    account_actor,
    discard,
    held,
    on_disk,
    require_base,
    session_prefix,
)
from session.endings import service as endings
from session.engine.port import EngineError
from session.lifecycle.errors import OtherBase, SessionGone
from session.lifecycle.model import Status, TrainingSession
from session.lifecycle.repository import WorkerRepository, set_metrics
from session.lifecycle.service import lora_config
from session.operations import service as operations
from session.operations.model import Operation, OperationStatus
from session.operations.repository import LogRepository
from session.worker.context import Context, can_be_repaired, failure
from session.worker.saving import SavePlan, Saver
from session.worker.training import Outcome, Training

T = TypeVar("T")

log = structlog.get_logger()
_REPLAY_PAGE = 100
_POLL_S = 1.0
_REPORT_S = 10.0
_STORAGE_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 15.0
_PATIENCE_S = 60.0  # with what a session that is to stop needs for its end
_SHORT_S = 0.05  # an operation that is over by then is never shown as running
_OFFERS = 16  # kept of those that come before their turn
_SAID_FIRST = ("create", "save")
_GRADIENT = "forward_backward"
_CLEARING = ("optim_step", "load")


class ReplayDiverged(ServiceError):
    """Better no session than one whose weights are not those that its log tells of."""

    def __init__(self, operation: Operation) -> None:
        super().__init__(f"operation {operation.number} failed once and completes now")


class Unrestorable(ServiceError):
    """Raised only for a session that is to stop: any other waits until it is repaired."""

    def __init__(self, operation: Operation, why: str) -> None:
        super().__init__(f"it could not be restored: operation {operation.number}: {why}")


class SessionRunner:
    """`live` is set once the session answers; it stays unset while the log is replayed."""

    def __init__(self, context: Context, session_id: str) -> None:
        self._context = context
        self._id = session_id
        self._wake = asyncio.Event()
        self._offered: dict[int, Operation] = {}
        self.wake()
        self._training = Training(context.engine, session_id)
        self._saver = Saver(context)
        self._ancestors: list[str] = []
        self._step = 0
        self._next = 0
        self._completing: asyncio.Task[None] | None = None
        self._prefix: str | None = None
        self.live = asyncio.Event()
        self.ended = asyncio.Event()

    def wake(self) -> None:
        """There is something in the database that nobody said more of."""
        self._must_look = True
        self._wake.set()

    def offer(self, operation: Operation) -> None:
        """As the log holds it: what is next need not be read there."""
        if self._next <= operation.number < self._next + _OFFERS:
            self._offered[operation.number] = operation
        self._wake.set()

    async def run(self) -> None:
        """Until the session ends, or the worker cancels this task: the log holds the rest."""
        try:
            session = await self._session()
            name = session.base_model
            self._prefix = session_prefix(session.account_id, session.id)
            self._owner = operations.Owner(session.account_id, session.id, name)
            self._base = await self._context.look(lambda db: require_base(db, name))
            await self._replay(session)
            while await self._one():
                pass
        except SessionGone:
            await self._leave()
        except Unrestorable as error:
            await self._end(Status.stopped, why=error.message)
        except Exception as error:  # the worker's edge: one session, not all
            log.error("session.failed", session=self._id, exc_info=error)
            await self._end(Status.failed, why=failure(error).message)
        finally:
            if self._completing is not None:  # the worker stops: a later one does it again
                self._completing.cancel()
                await asyncio.wait((self._completing,))
            self.ended.set()

    async def drain(self) -> None:
        """Wait for the saves that are still being written."""
        await self._saver.settled()

    async def _session(self) -> TrainingSession:
        return await self._context.look(lambda db: WorkerRepository(db).require_live(self._id))

    async def _replay(self, session: TrainingSession) -> None:
        """Do again what was completed, unmetered and unregistered; finish what was begun."""
        last, self._next = -1, session.next_number
        began = reported = monotonic()
        while page := await self._page(after=last):
            for operation in page:
                last = operation.number
                if operation.is_final:
                    await self._patiently(operation, partial(self._redo, operation))
                else:
                    await self._run(operation, is_replay=True)
                if monotonic() - reported > _REPORT_S:
                    reported = monotonic()
                    log.info("session.replaying", session=self._id, done=last + 1, of=self._next)
        await self._completed()
        if session.is_restoring:
            await self._context.change(self._restored)
            took = round(monotonic() - began, 1)
            log.info("session.restored", session=self._id, operations=self._next, seconds=took)
            self.live.set()

    async def _restored(self, db: AsyncSession) -> None:
        session = await WorkerRepository(db).require_live(self._id, lock=True)
        session.live_epoch = session.lease_epoch

    async def _page(self, *, after: int) -> Sequence[Operation]:
        return await self._context.look(
            lambda db: LogRepository(db, self._id).before(
                self._next, after=after, limit=_REPLAY_PAGE
            )
        )

    async def _patiently(self, operation: Operation, work: Callable[[], Awaitable[T]]) -> T:
        """Again until storage gives what `work` needs: it reads before it changes the model.

        The log outlives what an operator can repair, so no session is failed for it.
        """
        began, pause = monotonic(), _STORAGE_PAUSE_S
        while True:
            try:
                return await work()
            except Exception as error:
                if not can_be_repaired(error):
                    raise
                why = failure(error).message
            where = {"session": self._id, "operation": operation.number}
            log.warning("replay.waits", **where, reason=why, again_in_s=pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            is_stopping = (await self._session()).status == Status.stopping
            if is_stopping and monotonic() - began > _PATIENCE_S:
                raise Unrestorable(operation, why)

    async def _body(self, operation: Operation) -> wire.Body:
        return await operations.load_body(self._context.store, operation)

    async def _redo(self, operation: Operation) -> None:
        if operation.status == OperationStatus.failed:
            return await self._refail(operation)
        body = await self._body(operation)
        match body:
            case wire.Forward():
                return
            case wire.Save():
                assert operation.result is not None
                await self._remember(wire.unpack(operation.result, wire.Result).version)
            case _:
                outcome = await self._perform(operation, body)
                assert outcome is not None
                await self._settle(outcome)

    async def _refail(self, operation: Operation) -> None:
        """What failed left the weights, but may have poisoned the gradient, or cleared it.

        Only what the engine refused is asked of it again: a version that was missing then may
        exist by now, and storage that was away be back.
        """
        if operation.kind == _GRADIENT:
            return await self._training.poison()
        assert operation.error is not None
        if operation.kind in _CLEARING and operation.error["kind"] == Kind.invalid:
            body = await self._body(operation)
            try:
                await self._perform(operation, body)
            except (EngineError, ServiceError) as error:
                if can_be_repaired(error):
                    raise
                return
            raise ReplayDiverged(operation)

    async def _one(self) -> bool:
        """Wait for news, and run the next operation if there is one. False when the session has
        ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_POLL_S):
                await self._wake.wait()
        self._wake.clear()
        offered = self._offered.pop(self._next, None) if self.live.is_set() else None
        if offered is not None:
            await self._run_next(offered)
            return True
        await self._completed()
        self._must_look = False
        session, operation = await self._context.look(
            lambda db: LogRepository(db, self._id).due(self._next)
        )
        if operation is not None:
            # What was there before this look has been told of already.
            behind = session.last_number > operation.number or session.status == Status.stopping
            self._must_look |= behind
            await self._run_next(operation)
            return True
        if session.status == Status.stopping:
            await self._end(Status.stopped)
            return False
        return True

    async def _run_next(self, operation: Operation) -> None:
        self._next = operation.number + 1
        self._offered = {n: each for n, each in self._offered.items() if n >= self._next}
        if self._must_look or self._offered:
            self._wake.set()
        await self._run(operation)

    def comes_to(self, number: int) -> bool:
        """Whether the operation is still to be run here, so that its end will be announced."""
        return self.live.is_set() and number >= self._next

    async def _run(self, operation: Operation, *, is_replay: bool = False) -> None:
        if operation.kind in _SAID_FIRST:
            await self._completed()
        try:
            outcome = await (self._again if is_replay else self._first)(operation)
        except (SessionGone, Unrestorable):
            raise
        except Exception as error:  # the worker's edge: reported and logged
            if not isinstance(error, EngineError | ServiceError):
                log.error("operation.failed", operation=operation.id, exc_info=error)
            if operation.kind == _GRADIENT:  # whatever failed: this batch is missing in the sum
                await self._training.poison()
            why = failure(error)
            await self._completed()
            await self._fail(operation, why)
            self._context.done.announce(operation.id, operations.failed(operation, why))
        else:
            if outcome is None:  # a save, which tells of its end itself
                return
            await self._settle(outcome)
            await self._completed()
            self._completing = asyncio.create_task(
                self._complete(operation, outcome, step=self._step)
            )

    async def _completed(self) -> None:
        """What ran last is in the log. While that is written, the next operation may run."""
        if self._completing is not None:
            completing, self._completing = self._completing, None
            await completing

    async def _first(self, operation: Operation) -> Outcome | None:
        """What takes long is said to run; what is over before need not be. Where a worker dies in
        the middle of it, either is run again. What the session begins with, and a save, which may
        end after those behind it, are always said."""
        if operation.kind in _SAID_FIRST:
            await self._context.change(partial(self._claim, operation))
            return await self._try(operation)
        work = asyncio.create_task(self._try(operation))
        try:
            await asyncio.wait((work,), timeout=_SHORT_S)
            if not work.done():
                await self._context.change(partial(self._claim, operation))
            return await work
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait((work,))

    async def _claim(self, operation: Operation, db: AsyncSession) -> None:
        session = await WorkerRepository(db).require_live(self._id, lock=True)
        await operations.claim(db, session, operation.number)

    async def _try(self, operation: Operation) -> Outcome | None:
        return await self._perform(operation, await self._body(operation))

    async def _again(self, operation: Operation) -> Outcome | None:
        """Begun by a worker that is gone. What a replay waits for fails none of it: neither its
        body, nor what a session begins with."""
        if operation.number == 0:
            return await self._patiently(operation, lambda: self._try(operation))
        body = await self._patiently(operation, lambda: self._body(operation))
        return await self._perform(operation, body)

    async def _perform(self, operation: Operation, body: wire.Body) -> Outcome | None:
        """None where a save goes on by itself and completes its operation later."""
        training = self._training
        match body:
            case wire.Create():
                return await self._create(body)
            case wire.Forward():
                return await training.forward(body)
            case wire.ForwardBackward():
                return await training.forward_backward(body)
            case wire.OptimStep():
                return await training.optim_step(body)
            case wire.ClearGradient():
                return await training.clear_gradient(body)
            case wire.Load():
                return await self._load(body.source, with_optimizer=body.with_optimizer)
            case wire.Save():
                await self._save(operation, body)
                return None

    async def _create(self, body: wire.Create) -> Outcome:
        lora = lora_config(
            {
                "rank": body.lora.rank,
                "alpha": body.lora.alpha,
                "targets": body.lora.targets,
                "seed": body.lora.seed,
            }
        )
        base = await self._context.bases.ready(self._base.name)
        await self._context.engine.drop(self._id)  # what an attempt left that storage cut short
        await self._context.engine.create_model(self._id, base=base, lora=lora)
        if body.source is None:
            return Outcome(wire.Result())
        return await self._load(body.source, with_optimizer=body.with_optimizer)

    async def _load(self, source: str, *, with_optimizer: bool) -> Outcome:
        ref = PackageRef.parse(source)
        package, found = await self._context.change(lambda db: held(db, self._id, ref))
        if package.base_digest != self._base.digest:
            raise OtherBase(str(ref), base=package.base_model)
        package.require_adapter()
        if with_optimizer:
            packages.require_resumable(package)
        folders = ("checkpoints/hf", "state") if with_optimizer else ("checkpoints/hf",)
        async with on_disk(
            self._context.store, found.parts(*folders), self._context.workdir
        ) as files:
            await self._training.load(files, with_optimizer=with_optimizer)
        step = package.step if with_optimizer else None
        return Outcome(wire.Result(version=str(ref)), step=step)

    async def _save(self, operation: Operation, body: wire.Save) -> None:
        session = await self._session()
        group = body.group or session.group_name
        metrics = self._training.last_measured
        if body.kind != "sampler":
            check_description(body.description)
            check_metadata(body.metadata)
            check_metrics({**metrics, **body.metrics})
            actor = account_actor(session.account_id)
            await self._context.look(lambda db: packages.require_group(db, actor, group))
        plan = SavePlan(
            session_id=self._id,
            account_id=session.account_id,
            operation_id=operation.id,
            number=operation.number,
            body=body,
            group=group,
            base=self._base,
            step=self._step,
            metrics=dict(metrics),
            ancestors=tuple(self._ancestors),
        )
        await self._saver.start(plan)
        if body.kind != "sampler":
            self._ancestors.append(operation.id)

    async def _settle(self, outcome: Outcome) -> None:
        """What an outcome, first or replayed, means for the saves after it."""
        if outcome.step is not None:
            self._step = outcome.step
        await self._remember(outcome.result.version)

    async def _remember(self, version: str | None) -> None:
        """A version that was saved or loaded here is an ancestor of the next save."""
        if version is None:
            return
        actor, ref = account_actor((await self._session()).account_id), PackageRef.parse(version)
        package = await self._context.look(lambda db: packages.require_version(db, actor, ref))
        self._ancestors.append(package.id)

    async def _complete(self, operation: Operation, outcome: Outcome, *, step: int) -> None:
        packed = wire.pack(outcome.result)

        async def complete(db: AsyncSession) -> None:
            await WorkerRepository(db).advance(self._id, number=operation.number + 1, step=step)
            await operations.complete(
                db, operation, packed, owner=self._owner, counts=outcome.counts
            )
            if outcome.measured and outcome.step is not None:
                numbers = outcome.measured
                await set_metrics(db, self._id, step=outcome.step, numbers=numbers)
            if operation.number == 0:
                session = await WorkerRepository(db).require(self._id)
                session.live_epoch = session.lease_epoch
                if session.status == Status.created:
                    session.move(Status.running)

        is_short = len(packed) <= operations.INLINE_BYTES
        await self._context.change(complete, keyed=is_short)
        self.live.set()
        ended = operations.completed(operation, outcome.result)
        self._context.done.announce(operation.id, ended)

    async def _fail(self, operation: Operation, why: wire.Failure) -> None:
        async def fail(db: AsyncSession) -> None:
            await WorkerRepository(db).advance(self._id, number=self._next, step=self._step)
            await operations.fail(db, operation, why)
            if operation.number:
                return
            session = await WorkerRepository(db).require(self._id)
            skipped[:] = await endings.end(db, session, Status.failed, why=why.message)

        skipped: list[str] = []
        await self._context.change(fail)
        self._tell_of(skipped)

    def _tell_of(self, ended: Sequence[str]) -> None:
        for operation_id in ended:
            self._context.done.announce(operation_id)

    async def _end(self, status: Status, *, why: str | None = None) -> None:
        """Publish what is still being written, then let go of everything the session held."""

        skipped: list[str] = []

        async def end(db: AsyncSession) -> None:
            session = await WorkerRepository(db).require(self._id, lock=True)
            skipped[:] = await endings.end(db, session, status, why=why)

        await self._quiet()
        await self._context.change(end)
        self._tell_of(skipped)
        await self._let_go()

    async def _leave(self) -> None:
        """Somebody else has ended the session, or deleted it since."""
        await self._quiet()
        self._tell_of(await self._context.look(lambda db: LogRepository(db, self._id).skipped()))
        await self._let_go()

    async def _quiet(self) -> None:
        """Wait for what is still being written, as far as it goes: it may be what failed."""
        if self._completing is not None:
            await asyncio.gather(self._completing, return_exceptions=True)
        await self._saver.settled()

    async def _let_go(self) -> None:
        """Nobody replays an ended session or samples from it: its bodies and weights go too."""
        await self._context.engine.drop(self._id)
        if self._prefix is not None:
            await discard(self._context.store, self._prefix)
