"""Make a merged version of a state or an adapter, as its row asks."""

from collections.abc import Sequence

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from exporters.merge import merge
from registry.kit.ids import new_id
from registry.kit.threads import in_own_thread
from registry.packages import service as packages
from registry.packages import writes
from registry.packages.errors import WriteCollected
from registry.packages.model import Package, PackageKind, PackageWrite
from registry.packages.service import PackageDraft, PackageRef, package_prefix
from session.checkpoints import ADAPTER, MERGED, account_actor, discard, on_disk, stored
from session.merges import service as merges
from session.merges.model import Merge, MergeStatus
from session.worker.context import Context, failure
from session.worker.writing import Place, Written, write

log = structlog.get_logger()


async def merge_one(context: Context) -> bool:
    """Do the oldest merge that waits; False where none does."""
    asked = await context.change(lambda db: merges.claim(db, context.worker_id))
    if asked is None:
        return False
    try:
        await _merge(context, asked)
    except Exception as error:  # the worker's edge: reported and logged
        log.warning("merge.failed", merge=asked.id, exc_info=error)
        await _report(context, asked, error)
    return True


async def _report(context: Context, asked: Merge, error: Exception) -> None:
    """Unless it was done after all, by another worker."""

    async def report(db: AsyncSession) -> Sequence[PackageWrite]:
        merge = await merges.require_claimed(db, asked)
        if merge.status == MergeStatus.completed:
            return ()
        await merges.fail(db, merge, error=failure(error).message)
        return await writes.give_up(db, account_actor(asked.account_id), asked.id)

    for left_over in await context.change(report):
        await discard(context.store, left_over.prefix)


async def _merge(context: Context, asked: Merge) -> None:
    ref = PackageRef.parse(asked.source_ref)
    source, found = await context.look(lambda db: stored(db, asked.account_id, ref))
    base = await context.bases.readable(source.base_model)
    async with on_disk(context.store, found.parts(ADAPTER), context.workdir) as folder:
        await in_own_thread(merge, base.path, folder / ADAPTER, folder / MERGED)
        while True:
            try:
                actor = account_actor(asked.account_id)
                written = await write(context, _place(asked), folder, actor, holder=asked.id)
                return await _publish(context, asked, _draft(source, written))
            except WriteCollected as collected:
                log.warning("merge.again", merge=asked.id, why=collected.message)


def _place(asked: Merge) -> Place:
    package_id, actor = new_id("pkg"), account_actor(asked.account_id)
    return package_id, package_prefix(actor, asked.group_name, package_id)


async def _publish(context: Context, asked: Merge, draft: PackageDraft) -> None:
    async def publish(db: AsyncSession) -> None:
        row = await merges.require_claimed(db, asked)
        if not row.is_final:  # by a commit whose answer was lost, or by another worker
            package = await _register(db, asked, draft)
            await merges.complete(
                db, row, version_ref=str(PackageRef(asked.group_name, package.version))
            )

    await context.change(publish)


async def _register(db: AsyncSession, asked: Merge, draft: PackageDraft) -> Package:
    actor = account_actor(asked.account_id)
    return await packages.register(db, actor, group_name=asked.group_name, draft=draft)


def _draft(source: Package, written: Written) -> PackageDraft:
    """The merged version is its source in another form: same step, metrics and usage."""
    return PackageDraft(
        id=written.id,
        kind=PackageKind.merged,
        prefix=written.prefix,
        files=tuple(written.files),
        base_model=source.base_model,
        base_digest=source.base_digest,
        lora=source.lora,
        parent_id=source.id,
        session_id=source.session_id,
        operation_number=source.operation_number,
        step=source.step,
        metrics=source.metrics,
        description=source.description,
        user_metadata=source.user_metadata,
        usage=source.usage,
    )
