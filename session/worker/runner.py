"""One session on this worker: bring it back from its log, then run what comes, in order."""

import asyncio
from contextlib import suppress

import structlog

from registry.kit.errors import ServiceError
from registry.packages import service as packages
from registry.packages.service import PackageRef
from session import wire
from session.checkpoints import account_actor, on_disk, require_base, stored
from session.engine.port import EngineError
from session.lifecycle.model import Status, TrainingSession
from session.lifecycle.repository import WorkerRepository, set_metrics
from session.lifecycle.service import lora_config
from session.operations import service as operations
from session.operations.model import Operation, OperationStatus
from session.operations.repository import LogRepository
from session.sampling.repository import forget_weights
from session.worker.context import Context, failure
from session.worker.saving import SavePlan, Saver, plan_id
from session.worker.training import Outcome, Training

log = structlog.get_logger()
_REPLAY_PAGE = 100
_POLL_S = 1.0


class SessionRunner:
    """`live` is set once the session answers; it stays unset while the log is replayed."""

    def __init__(self, context: Context, session_id: str) -> None:
        self._context = context
        self._id = session_id
        self._wake = asyncio.Event()
        self._training = Training(context.engine, session_id)
        self._saver = Saver(context)
        self._ancestors: list[str] = []
        self._step = 0
        self.live = asyncio.Event()
        self.ended = asyncio.Event()

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Until the session ends, or the worker cancels this task: the log holds the rest."""
        try:
            session = await self._session()
            self._base = await require_base(self._context.database, session.base_model)
            await self._replay(session)
            while await self._one():
                pass
        except Exception as error:  # the worker's edge: one session, not all
            log.error("session.failed", session=self._id, exc_info=error)
            await self._end(Status.failed, why=failure(error).message)
        finally:
            self.ended.set()

    async def drain(self) -> None:
        """Wait for the saves that are still being written."""
        await self._saver.settled()

    async def _session(self) -> TrainingSession:
        async with self._context.database.read() as db:
            return await WorkerRepository(db).require(self._id)

    async def _replay(self, session: TrainingSession) -> None:
        """Do again what was completed, unmetered and unregistered; finish what was begun."""
        last = -1
        while True:
            async with self._context.database.read() as db:
                log_rows = LogRepository(db, self._id)
                page = await log_rows.before(session.next_number, after=last, limit=_REPLAY_PAGE)
            if not page:
                break
            for operation in page:
                last = operation.number
                if operation.is_final:
                    await self._redo(operation)
                else:
                    await self._run(operation)
        if session.next_number and session.status in (Status.running, Status.stopping):
            self.live.set()

    async def _redo(self, operation: Operation) -> None:
        """A call that failed is made again too: it may have poisoned the gradient."""
        body = await operations.load_body(self._context.store, operation)
        is_completed = operation.status == OperationStatus.completed
        if isinstance(body, wire.Save):
            if operation.result and is_completed:
                await self._remember(wire.unpack(operation.result, wire.Result).version)
            return
        if isinstance(body, wire.Forward):
            return
        try:
            outcome = await self._perform(operation, body)
        except (EngineError, ServiceError):
            if is_completed:
                raise
            return
        if outcome is not None:
            await self._settle(outcome)

    async def _one(self) -> bool:
        """Run the next operation, or wait for one. False when the session has ended."""
        self._wake.clear()
        async with self._context.database.begin() as db:
            session = await WorkerRepository(db).require(self._id)
            if not session.is_live:
                return False
            operation = await operations.claim_next(db, session)
            is_stopping = session.status == Status.stopping
        if operation is not None:
            await self._run(operation)
            return not (operation.number == 0 and operation.status == OperationStatus.failed)
        if is_stopping:
            await self._end(Status.stopped)
            return False
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), _POLL_S)
        return True

    async def _run(self, operation: Operation) -> None:
        try:
            body = await operations.load_body(self._context.store, operation)
            outcome = await self._perform(operation, body)
        except Exception as error:  # the worker's edge: reported and logged
            if not isinstance(error, EngineError | ServiceError):
                log.error("operation.failed", operation=operation.id, exc_info=error)
            await self._fail(operation, failure(error))
        else:
            if outcome is not None:
                await self._settle(outcome)
                await self._complete(operation, outcome)
        self._context.done.announce(operation.id)

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
        await self._context.engine.create_model(self._id, base=self._base, lora=lora)
        if body.source is None:
            return Outcome(wire.Result())
        return await self._load(body.source, with_optimizer=body.with_optimizer)

    async def _load(self, source: str, *, with_optimizer: bool) -> Outcome:
        ref = PackageRef.parse(source)
        session = await self._session()
        async with self._context.database.read() as db:
            package, found = await stored(db, session.account_id, ref)
        if with_optimizer:
            packages.require_resumable(package)
        folders = ("checkpoints/hf", "state") if with_optimizer else ("checkpoints/hf",)
        async with on_disk(
            self._context.store, found.parts(*folders), self._context.workdir
        ) as files:
            await self._context.engine.load(self._id, files, with_optimizer=with_optimizer)
        step = package.step if with_optimizer else None
        return Outcome(wire.Result(version=str(ref)), step=step)

    async def _save(self, operation: Operation, body: wire.Save) -> None:
        session = await self._session()
        group = body.group or session.group_name
        if body.kind != "sampler":
            async with self._context.database.read() as db:
                await packages.require_group(db, account_actor(session.account_id), group)
        plan = SavePlan(
            session_id=self._id,
            account_id=session.account_id,
            operation_id=operation.id,
            number=operation.number,
            body=body,
            group=group,
            base=self._base,
            step=self._step,
            metrics=dict(self._training.last_measured),
            new_id=plan_id(body.kind),
            ancestors=tuple(self._ancestors),
        )
        await self._saver.start(plan)
        if body.kind != "sampler":
            self._ancestors.append(plan.new_id)

    async def _settle(self, outcome: Outcome) -> None:
        """What an outcome, first or replayed, means for the saves after it."""
        if outcome.step is not None:
            self._step = outcome.step
        await self._remember(outcome.result.version)

    async def _remember(self, version: str | None) -> None:
        """A version that was saved or loaded here is an ancestor of the next save."""
        if version is None:
            return
        session = await self._session()
        async with self._context.database.read() as db:
            actor = account_actor(session.account_id)
            package = await packages.require_version(db, actor, PackageRef.parse(version))
        self._ancestors.append(package.id)

    async def _complete(self, operation: Operation, outcome: Outcome) -> None:
        async with self._context.database.begin() as db:
            session = await WorkerRepository(db).require(self._id)
            row = await LogRepository(db, self._id).require(operation.id)
            await operations.complete(db, session, row, outcome.result, counts=outcome.counts)
            session.step = self._step
            if outcome.measured and outcome.step is not None:
                numbers = outcome.measured
                await set_metrics(db, self._id, step=outcome.step, numbers=numbers)
            if operation.number == 0 and session.status == Status.created:
                session.move(Status.running)
        self.live.set()

    async def _fail(self, operation: Operation, why: wire.Failure) -> None:
        async with self._context.database.begin() as db:
            row = await LogRepository(db, self._id).require(operation.id)
            operations.fail(row, why)
            if operation.number == 0:
                session = await WorkerRepository(db).require(self._id)
                session.move(Status.failed, error=why.message)
                await operations.skip_open(db, session, why=f"the session failed: {why.message}")
        operation.status = OperationStatus.failed

    async def _end(self, status: Status, *, why: str | None = None) -> None:
        """Publish what is still being written, then let go of everything the session held."""
        await self._saver.settled()
        async with self._context.database.begin() as db:
            session = await WorkerRepository(db).require(self._id)
            if session.is_live:
                session.move(status, error=why)
            await operations.skip_open(db, session, why=f"the session is {status}")
            gone = await forget_weights(db, self._id)
        await self._context.engine.drop(self._id)
        for weights in gone:
            for file in weights.files:
                await self._context.store.delete(weights.prefix + str(file["path"]))
