"""Weights of two versions are compared without ever being held."""

import hashlib
import tracemalloc
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.artifacts.local import LocalBlobStore
from registry.artifacts.manifest import FileEntry
from registry.packages.differences import Side, Tensors
from registry.packages.model import PackageKind
from support.packages import a_version, an_actor

MIB = 2**20
COUNT, SIZE = 24, 8 * MIB


async def publish(db: AsyncSession, actor: Actor, store: LocalBlobStore, names: list[str]) -> Side:
    """A merged version of 24 tensors of 8 MiB, in two shards."""
    half = COUNT // 2
    blobs = {"checkpoints/hf/a.json": b"{}"}
    for number, part in enumerate((names[:half], names[half:])):
        tensors = {name: torch.full((SIZE // 2,), 0.5, dtype=torch.bfloat16) for name in part}
        blobs[f"checkpoints/hf_merged/{number}.safetensors"] = save(tensors)
    files = [FileEntry(p, len(d), hashlib.sha256(d).hexdigest()) for p, d in blobs.items()]
    package = await a_version(db, actor, kind=PackageKind.merged, files=files)
    for path, data in blobs.items():
        await store.put_bytes(package.prefix + path, data)
    return Side(package, files)


@pytest.mark.parametrize("turned", [False, True], ids=["same-shards", "other-shards"])
async def test_memory_is_bounded_by_the_tensors_compared_not_by_the_model(
    db: AsyncSession, tmp_path: Path, turned: bool
) -> None:
    actor, store = await an_actor(db), LocalBlobStore(tmp_path)
    names = [f"t{number:02}" for number in range(COUNT)]
    before = await publish(db, actor, store, names)
    after = await publish(db, actor, store, names[::-1] if turned else names)
    opened = await Tensors.open(store, before, after)
    tracemalloc.start()
    try:
        moved = [each async for each in opened.moved()]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [(each.name, each.change.difference) for each in moved] == [(n, 0.0) for n in names]
    assert peak < COUNT * SIZE / 2  # of 192 MiB a version
