"""Make a merged version of a state or an adapter, as its row asks."""

import asyncio
from pathlib import Path

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from exporters.merge import merge
from registry.artifacts.manifest import FileEntry, describe
from registry.artifacts.transfer import upload
from registry.packages import service as packages
from registry.packages.model import Package, PackageKind
from registry.packages.service import PackageDraft, PackageRef
from session.checkpoints import ADAPTER, MERGED, account_actor, on_disk, stored
from session.merges import service as merges
from session.merges.model import Merge
from session.worker.context import Context, failure
from session.worker.saving import plan_id

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
        await _report(context, asked.id, error)
    return True


async def _report(context: Context, merge_id: str, error: Exception) -> None:
    async def report(db: AsyncSession) -> None:
        merges.fail(await db.get_one(Merge, merge_id), error=failure(error).message)

    await context.change(report)


async def _merge(context: Context, asked: Merge) -> None:
    ref = PackageRef.parse(asked.source_ref)
    source, found = await context.look(lambda db: stored(db, asked.account_id, ref))
    base = await context.bases.readable(source.base_model)
    package_id = plan_id("merged")
    prefix = f"{asked.account_id}/{asked.group_name}/{package_id}/"
    async with on_disk(context.store, found.parts(ADAPTER), context.workdir) as folder:
        await asyncio.to_thread(merge, base.path, folder / ADAPTER, folder / MERGED)
        files = await _store(context, prefix, folder)
    draft = _draft(source, package_id, prefix, files)

    async def publish(db: AsyncSession) -> None:
        row = await db.get_one(Merge, asked.id)
        if not row.is_final:  # by a commit whose answer was lost
            package = await _register(db, asked, draft)
            merges.complete(row, version_ref=str(PackageRef(asked.group_name, package.version)))

    await context.change(publish)


async def _store(context: Context, prefix: str, folder: Path) -> tuple[FileEntry, ...]:
    files = await asyncio.to_thread(describe, folder)
    await upload(context.store, prefix, folder, files)
    return tuple(files)


async def _register(db: AsyncSession, asked: Merge, draft: PackageDraft) -> Package:
    actor = account_actor(asked.account_id)
    return await packages.register(db, actor, group_name=asked.group_name, draft=draft)


def _draft(
    source: Package, package_id: str, prefix: str, files: tuple[FileEntry, ...]
) -> PackageDraft:
    """The merged version is its source in another form: same step, metrics and usage."""
    return PackageDraft(
        id=package_id,
        kind=PackageKind.merged,
        prefix=prefix,
        files=files,
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
