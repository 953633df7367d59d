"""What the database knows of uploads: begun, claimed, and what became of them."""

import asyncio
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor, Role
from registry.artifacts.manifest import manifest_digest
from registry.artifacts.parts import part_size
from registry.kit.clock import now
from registry.kit.errors import ServiceError
from registry.kit.ids import new_id
from registry.kit.pages import Cursors, Page
from registry.kit.text import is_unicode
from registry.models import service as models
from registry.packages import service as packages
from registry.packages import writes
from registry.packages.model import Package, PackageDraft
from registry.packages.ref import PackageRef
from registry.packages.service import package_prefix
from registry.uploads.checks import check_group, check_wish
from registry.uploads.errors import (
    ClaimLost,
    InvalidUpload,
    UploadFileNotFound,
    UploadNotFound,
    UploadOver,
    UploadTokenReused,
)
from registry.uploads.model import OVER, Limits, Upload, UploadFile, UploadState, UploadWish
from registry.uploads.repository import UploadKeeper, UploadRepository

CLAIM_S = 15.0
"""Who commits says that it is still there far more often than this."""
_ROUND = 100
_ROWS = 500
"""Added at once: between two such, other requests are served."""
_SAID = {
    "digest": "list of files",
    "kind": "kind",
    "base_model": "base_model",
    "parent_id": "parent",
    "description": "description",
    "user_metadata": "metadata",
}
"""What makes an upload this one, by the names that a caller knows."""


async def add(
    db: AsyncSession, actor: Actor, group: str, wish: UploadWish, limits: Limits
) -> tuple[Upload, bool]:
    """A new upload, or that of the same token; and whether it is new. No group is made yet."""
    # Of thousands of files this takes a while, in which the loop has other requests to serve.
    await asyncio.to_thread(check_wish, group, wish, limits)
    upload = await _new(db, actor, group, wish, limits)
    known = await _known(db, actor, upload)
    if known is not None:
        return known, False
    try:
        async with db.begin_nested():
            UploadRepository(db, actor.account_id).add(upload)
    except IntegrityError:  # the same push, at the same moment
        known = await _known(db, actor, upload)
        if known is None:
            raise
        return known, False
    rows = await asyncio.to_thread(_files, upload.id, wish, limits)
    for start in range(0, len(rows), _ROWS):
        await UploadRepository(db, actor.account_id).add_files(rows[start : start + _ROWS])
    await announce(db, actor, upload, [str(row["path"]) for row in rows])
    return upload, True


async def announce(db: AsyncSession, actor: Actor, upload: Upload, paths: Sequence[str]) -> None:
    """Its files are no garbage, as long as this is said often enough."""
    await writes.begin(db, actor, upload.id, prefix=upload.prefix, paths=paths, holder=upload.id)


async def give_up(
    db: AsyncSession, upload: Upload, state: UploadState, error: str | None = None
) -> None:
    """It comes to nothing: its files may go, and the same push may begin again."""
    upload.state, upload.error, upload.token, upload.claim = state, error, None, None
    await writes.give_up(db, Actor(upload.account_id, Role.member), upload.id)


async def require_upload(
    db: AsyncSession, actor: Actor, group: str, upload_id: str, *, lock: bool = False
) -> Upload:
    found = await UploadRepository(db, actor.account_id).upload(group, upload_id, lock=lock)
    if found is None:
        raise UploadNotFound(upload_id)
    return found


async def require_bare(db: AsyncSession, actor: Actor, group: str, upload_id: str) -> Upload:
    """Without its files."""
    found = await UploadRepository(db, actor.account_id).bare(group, upload_id)
    if found is None:
        raise UploadNotFound(upload_id)
    return found


async def require_file(db: AsyncSession, actor: Actor, upload: Upload, path: str) -> UploadFile:
    found = None
    if is_unicode(path) and "\0" not in path:  # PostgreSQL refuses some of what a URL can hold
        found = await UploadRepository(db, actor.account_id).file(upload.id, path)
    if found is None:
        raise UploadFileNotFound(upload.id, path)
    return found


async def uploads(
    db: AsyncSession,
    actor: Actor,
    group: str,
    *,
    state: UploadState | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[Upload]:
    """Newest first. A group that is not made yet has them too."""
    check_group(group)
    cursors = Cursors((str,), ("uploads", actor.account_id, group, state))
    position = cursors.read(cursor)
    rows = await UploadRepository(db, actor.account_id).uploads(
        group, state=state, before=str(position[0]) if position else None, limit=limit + 1
    )
    return cursors.page(rows, limit, lambda upload: (upload.id,))


async def record_store_id(db: AsyncSession, actor: Actor, file: UploadFile, store_id: str) -> bool:
    return await UploadRepository(db, actor.account_id).record_store_id(file, store_id)


async def claim(db: AsyncSession, actor: Actor, upload_id: str, name: str) -> bool:
    """Compare and set: whether `name` may commit the upload now."""
    at = now()
    return await UploadRepository(db, actor.account_id).claim(
        upload_id, name, at=at, stale=at - timedelta(seconds=CLAIM_S)
    )


async def refresh_claim(db: AsyncSession, actor: Actor, upload: Upload, name: str) -> None:
    repository = UploadRepository(db, actor.account_id)
    if not await repository.refresh_claim(upload.id, name, at=now()):
        await require_claim(db, actor, upload, name)
    await announce(db, actor, upload, [file.path for file in upload.files])


async def require_claim(db: AsyncSession, actor: Actor, upload: Upload, name: str) -> Upload:
    """The upload, locked, if `name` still is who commits it."""
    found = await require_upload(db, actor, upload.group_name, upload.id, lock=True)
    if found.claim != name:
        if found.state in OVER:
            found.require_open()
        raise ClaimLost(upload.id)
    return found


async def release(
    db: AsyncSession, actor: Actor, upload: Upload, name: str, state: UploadState
) -> Upload:
    """Commit it no more; nothing where somebody else does. The upload as it is now."""
    found = await require_upload(db, actor, upload.group_name, upload.id, lock=True)
    if found.claim == name:
        found.state, found.claim = state, None
    return found


async def mark_cleared(db: AsyncSession, upload: Upload) -> None:
    actor = Actor(upload.account_id, Role.member)
    found = await require_upload(db, actor, upload.group_name, upload.id, lock=True)
    found.is_cleared = True


async def publish(db: AsyncSession, actor: Actor, upload: Upload, draft: PackageDraft) -> Package:
    """The version, its group where that is missing, and the upload's end: all or nothing."""
    await packages.ensure_group(db, actor, upload.group_name)
    package = await packages.register(db, actor, group_name=upload.group_name, draft=draft)
    upload.state, upload.version, upload.claim = UploadState.committed, package.version, None
    return package


async def abort(db: AsyncSession, actor: Actor, group: str, upload_id: str) -> Upload:
    """Until it is a version: a commit that runs finds that it has lost its claim. Aborting what
    came to nothing is nothing."""
    upload = await require_upload(db, actor, group, upload_id, lock=True)
    match upload.state:
        case UploadState.committed:
            raise UploadOver(upload.id, upload.state, upload.ref)
        case UploadState.open | UploadState.committing:
            await give_up(db, upload, UploadState.aborted)
    return upload


async def expire(db: AsyncSession, *, at: datetime) -> int:
    """Give up what is past its time; how many that were."""
    stale = at - timedelta(seconds=CLAIM_S)
    due = await UploadKeeper(db).due(at=at, stale=stale, limit=_ROUND)
    for upload in due:
        await give_up(db, upload, UploadState.expired, "it was not committed in time")
    return len(due)


async def living(db: AsyncSession, ids: Collection[str]) -> set[str]:
    """Those of these uploads that may still become versions: what they wrote is no garbage."""
    return await UploadKeeper(db).living(ids)


async def uncleared(db: AsyncSession) -> list[Upload]:
    """Those that came to nothing and may still have something in the store."""
    return list(await UploadKeeper(db).uncleared(limit=_ROUND))


async def _known(db: AsyncSession, actor: Actor, wanted: Upload) -> Upload | None:
    """The upload that has the token. It says all that is said now, or it is another one."""
    repository = UploadRepository(db, actor.account_id)
    found = await repository.by_token(wanted.group_name, str(wanted.token))
    if found is None:
        return None
    if await _is_deleted(db, actor, found):
        found.token = None  # what it made is gone, so the same push makes it anew
        await db.flush()
        return None
    for name, field in _SAID.items():
        if getattr(found, name) != getattr(wanted, name):
            raise UploadTokenReused(found.id, field)
    return found


async def _is_deleted(db: AsyncSession, actor: Actor, upload: Upload) -> bool:
    if upload.version is None:
        return False
    ref = PackageRef(upload.group_name, upload.version)
    return (await packages.require_version(db, actor, ref)).deleted_at is not None


async def _new(
    db: AsyncSession, actor: Actor, group: str, wish: UploadWish, limits: Limits
) -> Upload:
    package_id = new_id("pkg")
    return Upload(
        id=package_id,
        account_id=actor.account_id,
        group_name=group,
        token=wish.token,
        state=UploadState.open,
        kind=wish.kind,
        prefix=package_prefix(actor, group, package_id),
        digest=await asyncio.to_thread(manifest_digest, wish.files),
        size=sum(file.size for file in wish.files),
        base_model=await _base(db, wish.base_model),
        parent_id=await _parent(db, actor, wish.parent),
        description=wish.description,
        user_metadata=dict(wish.metadata),
        version=None,
        error=None,
        expires_at=now() + timedelta(seconds=limits.life_s),
    )


def _files(upload_id: str, wish: UploadWish, limits: Limits) -> list[dict[str, object]]:
    """Rows, which are added without an object for each."""
    return [
        {
            "upload_id": upload_id,
            "path": file.path,
            "size": file.size,
            "sha256": file.sha256,
            "part_size": part_size(file.size, limits.part_bytes),
        }
        for file in sorted(wish.files)
    ]


async def _base(db: AsyncSession, name: str) -> str:
    try:
        return (await models.require_base_model(db, name)).name
    except ServiceError as error:
        raise InvalidUpload("base_model", error.message) from None


async def _parent(db: AsyncSession, actor: Actor, ref: str | None) -> str | None:
    if ref is None:
        return None
    try:
        return (await packages.require_version(db, actor, PackageRef.parse(ref))).id
    except ServiceError as error:
        raise InvalidUpload("parent", error.message) from None
