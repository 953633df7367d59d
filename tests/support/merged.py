"""Publishes a small version with its files, for tests of what is done with one."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncSession

from registry.access import service as access
from registry.access.actor import Actor, Role
from registry.artifacts.manifest import FileEntry
from registry.artifacts.memory import MemoryBlobStore
from registry.kit.ids import new_id
from registry.packages import service as packages
from registry.packages.model import ADAPTER, MERGED, STATE, Package, PackageDraft, PackageKind
from support.packages import published

MODEL = {"config.json": b"{}", "model.safetensors": b"weights"}


async def member(db: AsyncSession, *, account: str = "team") -> Actor:
    return Actor((await access.create_account(db, name=account)).id, Role.member)


async def publish(
    db: AsyncSession,
    store: MemoryBlobStore,
    actor: Actor,
    *,
    model: Mapping[str, bytes] = MODEL,
    kind: PackageKind = PackageKind.merged,
) -> Package:
    """The next version of the group `facts`."""
    await packages.ensure_group(db, actor, "facts")
    package_id = new_id("pkg")
    prefix = packages.package_prefix(actor, "facts", package_id)
    blobs = {f"{ADAPTER}adapter_config.json": b"{}"}
    if kind == PackageKind.merged:
        blobs |= {MERGED + name: data for name, data in model.items()}
    if kind == PackageKind.state:
        blobs[f"{STATE}state.json"] = b"{}"
    for path, data in blobs.items():
        await store.put_bytes(prefix + path, data)
    draft = PackageDraft(
        id=package_id,
        kind=kind,
        prefix=prefix,
        files=[
            FileEntry(path, len(data), hashlib.sha256(data).hexdigest())
            for path, data in blobs.items()
        ],
        base_model="tiny",
        base_digest="sha256:0",
        lora={},
    )
    return await published(db, actor, "facts", draft)


def directory_of(path: Path) -> dict[str, bytes]:
    """The files of a model directory, as `publish` takes them."""
    return {file.name: file.read_bytes() for file in path.iterdir()}
