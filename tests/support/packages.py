"""The smallest accounts and versions that the registry takes."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from registry.access import service as access
from registry.access.actor import Actor, Role
from registry.artifacts.manifest import FileEntry
from registry.kit.ids import new_id
from registry.packages import service, writes
from registry.packages.model import Package, PackageDraft, PackageKind

LORA: Mapping[str, Any] = {"rank": 4, "alpha": 8.0, "targets": ["q_proj"], "seed": 1}


async def an_actor(db: AsyncSession, name: str = "alice") -> Actor:
    account = await access.create_account(db, name=name)
    return Actor(account.id, Role.member)


def a_draft(
    actor: Actor, group: str, kind: PackageKind = PackageKind.adapter, **changes: Any
) -> PackageDraft:
    """One small file in each folder that the kind needs; their bytes exist nowhere."""
    package_id = new_id("pkg")
    values: dict[str, Any] = {
        "id": package_id,
        "kind": kind,
        "prefix": service.package_prefix(actor, group, package_id),
        "files": [FileEntry(f"{part}file.json", 2, "ab" * 32) for part in kind.parts],
        "base_model": "tiny",
        "base_digest": "sha256:00",
        "lora": LORA,
    }
    return PackageDraft(**{**values, **changes})


async def a_version(
    db: AsyncSession,
    actor: Actor,
    group: str = "demo",
    kind: PackageKind = PackageKind.adapter,
    **changes: Any,
) -> Package:
    await service.ensure_group(db, actor, group)
    draft = a_draft(actor, group, kind, **changes)
    return await published(db, actor, group, draft)


async def published(db: AsyncSession, actor: Actor, group: str, draft: PackageDraft) -> Package:
    """Announced and registered at once, as nothing is written in between."""
    paths = [file.path for file in draft.files]
    await writes.begin(db, actor, draft.id, prefix=draft.prefix, paths=paths)
    return await service.register(db, actor, group_name=group, draft=draft)
