"""Saves: the weights are copied at their place in the log, written while training goes on, and
published in the order of their operations."""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from exporters.merge import merge
from registry.access.actor import Actor
from registry.kit.clock import now
from registry.kit.ids import new_id
from registry.kit.threads import in_own_thread
from registry.packages import service as packages
from registry.packages import writes
from registry.packages.errors import WriteCollected
from registry.packages.model import Package, PackageKind, PackageWrite
from registry.packages.service import PackageDraft, PackageRef
from registry.usage import service as usage
from session import wire
from session.checkpoints import ADAPTER, MERGED, account_actor, discard, scratch, weights_prefix
from session.engine.port import BaseRef
from session.lifecycle.errors import SessionGone
from session.lifecycle.model import TrainingSession
from session.lifecycle.repository import WorkerRepository
from session.operations import service as operations
from session.operations.model import Operation, OperationStatus
from session.operations.repository import LogRepository
from session.sampling.model import SamplerWeights
from session.worker.context import Context, failure
from session.worker.writing import Written, write

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SavePlan:
    """A save as it was at its place in the log; nothing later changes it."""

    session_id: str
    account_id: str
    operation_id: str
    number: int
    body: wire.Save
    group: str
    base: BaseRef
    step: int
    metrics: dict[str, float]
    ancestors: tuple[str, ...]
    """Versions that it may descend from, nearest last; those saved before it by their operation."""

    @property
    def actor(self) -> Actor:
        return account_actor(self.account_id)

    def place(self) -> tuple[str, str]:
        """A fresh id and its prefix: no two tries write to the same place."""
        if self.body.kind == "sampler":
            weights_id = new_id("wgt")
            return weights_id, weights_prefix(self.account_id, self.session_id, weights_id)
        package_id = new_id("pkg")
        return package_id, packages.package_prefix(self.actor, self.group, package_id)


class Saver:
    """One session's saves. `settled` resolves when everything asked for is published or failed."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._last: asyncio.Task[None] | None = None
        self._versions: dict[str, str | None] = {}
        """What became of each save, by its operation."""

    async def start(self, plan: SavePlan) -> None:
        """Return when the weights are copied; the rest goes on beside training."""
        context, stack = self._context, AsyncExitStack()
        folder = stack.enter_context(scratch(context.workdir))
        try:
            is_state = plan.body.kind == "state"
            written = await context.engine.save(plan.session_id, folder, with_optimizer=is_state)
        except BaseException:
            await stack.aclose()
            raise
        self._last = asyncio.create_task(self._finish(plan, folder, written, self._last, stack))

    async def settled(self) -> None:
        """Whoever is cancelled while it waits here cancels no save."""
        if self._last is not None:
            await asyncio.wait((self._last,))

    async def _finish(
        self,
        plan: SavePlan,
        folder: Path,
        written: Awaitable[None],
        before: asyncio.Task[None] | None,
        stack: AsyncExitStack,
    ) -> None:
        async with stack:
            try:
                await self._make(plan, folder, written)
                await self._keep(plan, folder, before)
            except Exception as error:  # the worker's edge: reported and logged
                log.warning("save.failed", operation=plan.operation_id, exc_info=error)
                await _over(before)
                await self._report(plan, error)
        self._context.done.announce(plan.operation_id)

    async def _make(self, plan: SavePlan, folder: Path, written: Awaitable[None]) -> None:
        await written
        if plan.body.kind == "merged":
            base = await self._context.bases.readable(plan.base.name)
            await in_own_thread(merge, base.path, folder / ADAPTER, folder / MERGED)

    async def _keep(
        self,
        plan: SavePlan,
        folder: Path,
        before: asyncio.Task[None] | None,
    ) -> None:
        """Written again, elsewhere, if what was written was taken for left over."""
        while True:
            try:
                written = await write(
                    self._context, plan.place(), folder, plan.actor, holder=plan.operation_id
                )
                await _over(before)
                return await self._publish(plan, written)
            except WriteCollected as collected:
                log.warning("save.again", operation=plan.operation_id, why=collected.message)

    async def _publish(self, plan: SavePlan, written: Written) -> None:
        async def publish(db: AsyncSession) -> str | None:
            session = await WorkerRepository(db).require(plan.session_id, lock=True)
            operation = await LogRepository(db, plan.session_id).get(plan.operation_id)
            if operation is None:
                raise SessionGone(plan.session_id)
            if operation.is_final:  # by a commit whose answer was lost, or by somebody else
                return await _saved(db, plan, operation)
            if plan.body.kind == "sampler":
                await writes.publish(db, plan.actor, written.id)
                db.add(_sampler_weights(plan, written))
                version, result = None, wire.Result(weights=written.id)
            else:
                package = await _register(db, session, plan, written, parent_id=self._parent(plan))
                version = package.id
                result = wire.Result(version=str(PackageRef(plan.group, package.version)))
            session.last_active_at = now()
            owner = operations.Owner(plan.account_id, plan.session_id, plan.base.name)
            await operations.complete(db, operation, wire.pack(result), owner=owner, counts={})
            return version

        self._versions[plan.operation_id] = await self._context.change(publish)

    def _parent(self, plan: SavePlan) -> str | None:
        """Those before it are settled by now, so the nearest that did not fail is there."""
        line = (self._versions.get(each, each) for each in reversed(plan.ancestors))
        return next((each for each in line if each is not None), None)

    async def _report(self, plan: SavePlan, error: Exception) -> None:
        """Unless another worker, which took the session over, has ended this save."""
        why = failure(error)

        async def report(db: AsyncSession) -> tuple[str | None, Sequence[PackageWrite]]:
            operation = await LogRepository(db, plan.session_id).get(plan.operation_id)
            if operation is not None and operation.status == OperationStatus.completed:
                return await _saved(db, plan, operation), ()
            if operation is not None:
                await operations.fail(db, operation, why)
            return None, await writes.give_up(db, plan.actor, plan.operation_id)

        found, left_over = await self._context.change(report)
        self._versions[plan.operation_id] = found
        for each in left_over:
            await discard(self._context.store, each.prefix)


async def _over(before: asyncio.Task[None] | None) -> None:
    """A save that went wrong does not hold back those after it."""
    if before is not None:
        await asyncio.wait((before,))


async def _saved(db: AsyncSession, plan: SavePlan, operation: Operation) -> str | None:
    """The version that the operation ended with, if it did with one."""
    found = wire.unpack(operation.result, wire.Result).version if operation.result else None
    if found is None:
        return None
    return (await packages.require_version(db, plan.actor, PackageRef.parse(found))).id


def _sampler_weights(plan: SavePlan, written: Written) -> SamplerWeights:
    return SamplerWeights(
        id=written.id,
        account_id=plan.account_id,
        session_id=plan.session_id,
        prefix=written.prefix,
        files=[{"path": f.path, "size": f.size, "sha256": f.sha256} for f in written.files],
        step=plan.step,
    )


async def _register(
    db: AsyncSession,
    session: TrainingSession,
    plan: SavePlan,
    written: Written,
    *,
    parent_id: str | None,
) -> Package:
    totals = await usage.totals(db, plan.actor, session_id=session.id)
    draft = PackageDraft(
        id=written.id,
        kind=PackageKind(plan.body.kind),
        prefix=written.prefix,
        files=tuple(written.files),
        base_model=plan.base.name,
        base_digest=plan.base.digest,
        lora=session.lora,
        parent_id=parent_id,
        session_id=session.id,
        operation_number=plan.number,
        step=plan.step,
        metrics={**plan.metrics, **plan.body.metrics},
        description=plan.body.description,
        user_metadata=plan.body.metadata,
        usage={category.value: tokens for category, tokens in totals.items()},
    )
    return await packages.register(db, plan.actor, group_name=plan.group, draft=draft)
