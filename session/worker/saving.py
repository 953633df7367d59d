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
from registry.artifacts.manifest import FileEntry, describe
from registry.artifacts.transfer import upload
from registry.kit.ids import new_id
from registry.packages import service as packages
from registry.packages.model import Package, PackageKind
from registry.packages.service import PackageDraft, PackageRef
from registry.usage import service as usage
from session import wire
from session.checkpoints import ADAPTER, MERGED, account_actor, scratch
from session.engine.port import BaseRef
from session.lifecycle.model import TrainingSession
from session.lifecycle.repository import WorkerRepository
from session.operations import service as operations
from session.operations.repository import LogRepository
from session.sampling.model import SamplerWeights
from session.worker.context import Context, failure

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
    new_id: str
    ancestors: tuple[str, ...]  # versions that it may descend from, nearest last

    @property
    def prefix(self) -> str:
        if self.body.kind == "sampler":
            return f"{self.account_id}/sessions/{self.session_id}/weights/{self.new_id}/"
        return f"{self.account_id}/{self.group}/{self.new_id}/"


class Saver:
    """One session's saves. `settled` resolves when everything asked for is published or failed."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._last: asyncio.Task[None] | None = None
        self._failed: set[str] = set()

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
                files = await self._write(plan, folder, written)
                await _over(before)
                await self._publish(plan, files)
            except Exception as error:  # the worker's edge: reported and logged
                log.warning("save.failed", operation=plan.operation_id, exc_info=error)
                await _over(before)
                await self._report(plan, error)
        self._context.done.announce(plan.operation_id)

    async def _write(
        self, plan: SavePlan, folder: Path, written: Awaitable[None]
    ) -> Sequence[FileEntry]:
        await written
        if plan.body.kind == "merged":
            base = await self._context.bases.readable(plan.base.name)
            await asyncio.to_thread(merge, base.path, folder / ADAPTER, folder / MERGED)
        files = await asyncio.to_thread(describe, folder)
        await upload(self._context.store, plan.prefix, folder, files)
        return files

    async def _publish(self, plan: SavePlan, files: Sequence[FileEntry]) -> None:
        async def publish(db: AsyncSession) -> None:
            session = await WorkerRepository(db).require(plan.session_id, lock=True)
            operation = await LogRepository(db, plan.session_id).require(plan.operation_id)
            if operation.is_final:
                return  # by a commit whose answer was lost
            if plan.body.kind == "sampler":
                db.add(_sampler_weights(plan, files))
                result = wire.Result(weights=plan.new_id)
            else:
                # Those before it are settled by now, so the nearest that did not fail is there.
                known = (a for a in reversed(plan.ancestors) if a not in self._failed)
                package = await _register(db, session, plan, files, parent_id=next(known, None))
                result = wire.Result(version=str(PackageRef(plan.group, package.version)))
            await operations.complete(db, session, operation, result, counts={})

        await self._context.change(publish)

    async def _report(self, plan: SavePlan, error: Exception) -> None:
        async def report(db: AsyncSession) -> None:
            operation = await LogRepository(db, plan.session_id).require(plan.operation_id)
            operations.fail(operation, failure(error))

        self._failed.add(plan.new_id)
        await self._context.change(report)


async def _over(before: asyncio.Task[None] | None) -> None:
    """A save that went wrong does not hold back those after it."""
    if before is not None:
        await asyncio.wait((before,))


def _sampler_weights(plan: SavePlan, files: Sequence[FileEntry]) -> SamplerWeights:
    return SamplerWeights(
        id=plan.new_id,
        account_id=plan.account_id,
        session_id=plan.session_id,
        prefix=plan.prefix,
        files=[{"path": f.path, "size": f.size, "sha256": f.sha256} for f in files],
        step=plan.step,
    )


async def _register(
    db: AsyncSession,
    session: TrainingSession,
    plan: SavePlan,
    files: Sequence[FileEntry],
    *,
    parent_id: str | None,
) -> Package:
    actor = account_actor(plan.account_id)
    totals = await usage.totals(db, actor, session_id=session.id)
    draft = PackageDraft(
        id=plan.new_id,
        kind=PackageKind(plan.body.kind),
        prefix=plan.prefix,
        files=tuple(files),
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
    return await packages.register(db, actor, group_name=plan.group, draft=draft)


def plan_id(kind: str) -> str:
    return new_id("wgt" if kind == "sampler" else "pkg")
