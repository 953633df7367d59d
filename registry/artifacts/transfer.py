"""Whole versions in and out of a store. Every byte that comes out has been compared."""

import asyncio
import hashlib
import shutil
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from secrets import token_hex

from registry.artifacts.errors import (
    ArtifactRefused,
    BlobNotFound,
    CorruptArtifact,
    InvalidArtifactName,
)
from registry.artifacts.formats import refuse_pickle
from registry.artifacts.manifest import FileEntry, describe, hash_file
from registry.artifacts.names import validate_artifact_name
from registry.artifacts.store import BlobStore


async def upload(
    store: BlobStore, prefix: str, directory: Path, files: Iterable[FileEntry]
) -> None:
    for file in files:
        path = directory / validate_artifact_name(file.path)
        await asyncio.to_thread(refuse_pickle, path)
        await store.put_file(prefix + file.path, path)


async def materialize(
    store: BlobStore, prefix: str, files: Sequence[FileEntry], target: Path
) -> None:
    """Make `target` hold exactly these files. A target that does already is compared and kept."""
    if await asyncio.to_thread(_holds, target, files):
        return
    aside = target.with_name(f".{target.name}.{token_hex(8)}")
    try:
        aside.mkdir(parents=True)
        for file in files:
            await _fetch(store, prefix, file, aside)
        await asyncio.to_thread(_install, aside, target, files)
    finally:
        await asyncio.to_thread(shutil.rmtree, aside, ignore_errors=True)


async def verified_stream(store: BlobStore, prefix: str, entry: FileEntry) -> AsyncIterator[bytes]:
    """The file's bytes, its last piece only once the digest is right.

    A file that is missing, of another size, or small and damaged fails before the first piece:
    then a wire can still say so.
    """
    if (size := await store.size(prefix + entry.path)) != entry.size:
        raise CorruptArtifact(entry.path, _sizes(size, entry))
    pieces = _verified(store.stream(prefix + entry.path), entry)
    first = await anext(pieces)
    return _chain(first, pieces)


async def _fetch(store: BlobStore, prefix: str, file: FileEntry, folder: Path) -> None:
    path = folder / validate_artifact_name(file.path)
    try:
        await store.fetch(prefix + file.path, path)
    except BlobNotFound:
        raise CorruptArtifact(file.path, "it is missing from the object store") from None
    if (size := path.stat().st_size) != file.size:
        raise CorruptArtifact(file.path, _sizes(size, file))
    if await asyncio.to_thread(hash_file, path) != file.sha256:
        raise CorruptArtifact(file.path, _digests(file))


def _holds(target: Path, files: Iterable[FileEntry]) -> bool:
    try:
        return target.is_dir() and describe(target) == sorted(files)
    except (ArtifactRefused, InvalidArtifactName):
        return False


def _install(aside: Path, target: Path, files: Iterable[FileEntry]) -> None:
    """A damaged target makes room. One that another process finished first is as good as ours."""
    try:
        aside.rename(target)
    except OSError:
        if _holds(target, files):
            return
        shutil.rmtree(target)
        aside.rename(target)


async def _verified(pieces: AsyncIterator[bytes], entry: FileEntry) -> AsyncIterator[bytes]:
    digest = hashlib.sha256()
    held = b""
    async for piece in pieces:
        if held:
            yield held
        digest.update(piece)
        held = piece
    if digest.hexdigest() != entry.sha256:
        raise CorruptArtifact(entry.path, _digests(entry))
    yield held


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


def _sizes(found: int | None, entry: FileEntry) -> str:
    return f"it has {found or 0} bytes instead of {entry.size}"


def _digests(entry: FileEntry) -> str:
    return f"its SHA-256 is no longer {entry.sha256}"
