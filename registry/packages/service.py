"""Groups and their versions: publish, list, look up."""

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.artifacts.manifest import FileEntry, manifest_digest
from registry.events.model import EventType
from registry.kit.errors import ServiceError
from registry.kit.ids import new_id
from registry.kit.names import NAME, NAME_RULE
from registry.kit.pages import Cursors, Page
from registry.packages import writes
from registry.packages.errors import (
    AliasNotFound,
    AlreadyRegistered,
    FileNotFound,
    GroupDeleted,
    GroupExists,
    GroupNotFound,
    InvalidPackage,
    NoneLatest,
    VersionNotFound,
)
from registry.packages.limits import check_description, check_draft

# Callers speak of a version by these two, so they find them beside the functions that take them.
from registry.packages.model import Package, PackageFile, PackageGroup
from registry.packages.model import PackageDraft as PackageDraft
from registry.packages.ref import ALIASED as ALIASED
from registry.packages.ref import LATEST, AliasRef
from registry.packages.ref import PackageRef as PackageRef
from registry.packages.ref import Ref as Ref
from registry.packages.ref import parse_ref as parse_ref
from registry.packages.ref import ref_in as ref_in
from registry.packages.repository import PackageRepository, Wanted
from registry.packages.telling import tell

EVERY = Wanted()


async def create_group(
    db: AsyncSession, actor: Actor, name: str, *, description: str = ""
) -> PackageGroup:
    """A deleted one of that name comes back, with its history and its counter."""
    if not NAME.fullmatch(name):
        raise InvalidPackage("name", f"{name!r} is not {NAME_RULE}")
    check_description(description)
    group = PackageGroup(
        id=new_id("grp"), account_id=actor.account_id, name=name, description=description
    )
    try:
        async with db.begin_nested():
            PackageRepository(db, actor.account_id).add(group)
    except IntegrityError:
        return await _revive(db, actor, name, description)
    return group


async def _revive(db: AsyncSession, actor: Actor, name: str, description: str) -> PackageGroup:
    group = await PackageRepository(db, actor.account_id).group(name, lock=True)
    if group is None or group.deleted_at is None:
        raise GroupExists(name)
    group.deleted_at, group.description = None, description
    group.revision += 1
    await db.flush()
    return group


async def ensure_group(db: AsyncSession, actor: Actor, name: str) -> PackageGroup:
    """The group of that name, made where it is missing or deleted."""
    found = await PackageRepository(db, actor.account_id).group(name)
    if found is not None and found.deleted_at is None:
        return found
    try:
        return await create_group(db, actor, name)
    except GroupExists:
        return await require_group(db, actor, name)


async def groups(
    db: AsyncSession, actor: Actor, *, limit: int = 50, cursor: str | None = None
) -> Page[PackageGroup]:
    cursors = Cursors((str,), ("groups", actor.account_id))
    position = cursors.read(cursor)
    rows = await PackageRepository(db, actor.account_id).groups(
        after=str(position[0]) if position else None, limit=limit + 1
    )
    return cursors.page(rows, limit, lambda group: (group.name,))


async def require_group(db: AsyncSession, actor: Actor, name: str) -> PackageGroup:
    """A deleted one too: its history stays."""
    group = await PackageRepository(db, actor.account_id).group(name)
    if group is None:
        raise GroupNotFound(name)
    return group


def package_prefix(actor: Actor, group_name: str, package_id: str) -> str:
    """Where a version's files lie: nobody can guess the id, which is made before they are."""
    return f"{actor.account_id}/{group_name}/{package_id}/"


async def register(
    db: AsyncSession, actor: Actor, *, group_name: str, draft: PackageDraft
) -> Package:
    """Publish: this one commit makes the next version. A number is never reused.

    Its files were announced by `writes.begin`, and have not been collected since.
    """
    check_draft(draft, prefix=package_prefix(actor, group_name, draft.id))
    packages = PackageRepository(db, actor.account_id)
    group = await packages.take_version(group_name)
    if group is None:
        raise await _closed(db, actor, group_name)
    package = _package(actor, group, draft)
    package.parent = await _parent(packages, draft.parent_id)
    try:
        async with db.begin_nested():
            packages.add(package)
    except IntegrityError:
        raise AlreadyRegistered(draft.id) from None
    packages.add(*_files(draft))
    await writes.publish(db, actor, draft.id)
    tell(db, package, EventType.version_registered)
    await db.flush()
    return package


async def _closed(db: AsyncSession, actor: Actor, group_name: str) -> ServiceError:
    """Why a group takes no version."""
    group = await require_group(db, actor, group_name)
    return GroupDeleted(group_name, at=group.deleted_at or group.created_at)


async def versions(
    db: AsyncSession,
    actor: Actor,
    group_name: str,
    *,
    wanted: Wanted = EVERY,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[Package]:
    """Newest first."""
    group = await require_group(db, actor, group_name)
    cursors = Cursors((int,), ("versions", group.id, *wanted.scope))
    position = cursors.read(cursor)
    rows = await PackageRepository(db, actor.account_id).versions(
        group.id, wanted=wanted, before=int(position[0]) if position else None, limit=limit + 1
    )
    return cursors.page(rows, limit, lambda package: (package.version,))


async def latest(
    db: AsyncSession, actor: Actor, group_name: str, *, wanted: Wanted = EVERY
) -> Package:
    """The highest number decides, never a clock."""
    found = await PackageRepository(db, actor.account_id).newest(group_name, wanted=wanted)
    if found is None:
        await require_group(db, actor, group_name)
        raise NoneLatest(group_name, kind=wanted.kind)
    return found


async def require_version(db: AsyncSession, actor: Actor, ref: Ref) -> Package:
    """Says whether the group or only the version is missing. A tombstone is found by its number."""
    package = await PackageRepository(db, actor.account_id).package(ref)
    if package is None:
        await require_group(db, actor, ref.group)
        raise _missing(ref)
    return package


async def require_live(db: AsyncSession, actor: Actor, ref: Ref) -> Package:
    """For what needs its files: refused where it is deleted."""
    package = await require_version(db, actor, ref)
    package.require_live()
    return package


def _missing(ref: Ref) -> ServiceError:
    if not isinstance(ref, AliasRef):
        return VersionNotFound(ref)
    return NoneLatest(ref.group) if ref.alias == LATEST else AliasNotFound(ref.group, ref.alias)


async def files(db: AsyncSession, package: Package) -> list[FileEntry]:
    rows = await PackageRepository(db, package.account_id).files(package.id)
    return [FileEntry(row.path, row.size, row.sha256) for row in rows]


async def require_file(db: AsyncSession, package: Package, path: str) -> FileEntry:
    for file in await files(db, package):
        if file.path == path:
            return file
    raise FileNotFound(package.ref, path)


def require_resumable(package: Package) -> None:
    package.require_resumable()


def require_promotable(package: Package) -> None:
    package.require_promotable()


async def _parent(packages: PackageRepository, parent_id: str | None) -> Package | None:
    if parent_id is None:
        return None
    parent = await packages.package_by_id(parent_id)
    if parent is None:
        raise InvalidPackage("parent_id", f"no version with the id {parent_id!r}")
    return parent


def _package(actor: Actor, group: PackageGroup, draft: PackageDraft) -> Package:
    return Package(
        id=draft.id,
        account_id=actor.account_id,
        group=group,
        version=group.last_version,
        created_at=group.last_version_at,
        kind=draft.kind,
        prefix=draft.prefix,
        digest=manifest_digest(draft.files),
        size=sum(file.size for file in draft.files),
        base_model=draft.base_model,
        base_digest=draft.base_digest,
        lora=dict(draft.lora),
        session_id=draft.session_id,
        operation_number=draft.operation_number,
        step=draft.step,
        metrics=dict(draft.metrics),
        description=draft.description,
        user_metadata=dict(draft.user_metadata),
        usage=dict(draft.usage),
    )


def _files(draft: PackageDraft) -> list[PackageFile]:
    return [
        PackageFile(package_id=draft.id, path=file.path, size=file.size, sha256=file.sha256)
        for file in draft.files
    ]
