"""Reads every byte again and says of each file whether it still is what the manifest says."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from registry.artifacts.errors import BlobNotFound
from registry.artifacts.manifest import FileEntry
from registry.artifacts.store import BlobStore


@dataclass(frozen=True, slots=True)
class Finding:
    """`problem` is None for a file that is as it was registered."""

    path: str
    size: int
    problem: str | None


async def audit(store: BlobStore, prefix: str, files: Sequence[FileEntry]) -> list[Finding]:
    """In the manifest's order; then what lies beside them and is not in it."""
    known = {prefix + file.path for file in files}
    strays = [key for key in await store.keys(prefix) if key not in known]
    findings = [
        Finding(each.path, each.size, await _problem(store, prefix, each)) for each in files
    ]
    return [*findings, *[await _stray(store, prefix, key) for key in strays]]


async def _problem(store: BlobStore, prefix: str, file: FileEntry) -> str | None:
    digest, size = hashlib.sha256(), 0
    try:
        async for piece in store.stream(prefix + file.path):
            digest.update(piece)
            size += len(piece)
    except BlobNotFound:
        return "it is missing"
    if size != file.size:
        return f"it has {size} bytes instead of {file.size}"
    if digest.hexdigest() != file.sha256:
        return f"its SHA-256 is {digest.hexdigest()} instead of {file.sha256}"
    return None


async def _stray(store: BlobStore, prefix: str, key: str) -> Finding:
    return Finding(
        key.removeprefix(prefix), await store.size(key) or 0, "it is not in the manifest"
    )
