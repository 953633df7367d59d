"""Whole versions in and out of a store. Every byte that comes out has been compared."""

import asyncio
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from registry.artifacts.errors import (
    ArtifactRefused,
    BlobNotFound,
    CorruptArtifact,
    InvalidArtifactName,
)
from registry.artifacts.formats import refuse_pickle
from registry.artifacts.manifest import FileEntry, describe, hash_file
from registry.artifacts.names import validate_artifact_name
from registry.artifacts.partial import hidden, lock, partial_files
from registry.artifacts.store import BlobStore, Progress


async def upload(
    store: BlobStore,
    prefix: str,
    directory: Path,
    paths: Iterable[str],
    *,
    progress: Progress | None = None,
) -> list[FileEntry]:
    """What was sent, each file's digest made while it was on its way."""
    return [await _send(store, prefix, directory, path, progress) for path in paths]


async def materialize(
    store: BlobStore,
    prefix: str,
    files: Sequence[FileEntry],
    target: Path,
    *,
    progress: Progress | None = None,
) -> None:
    """Make `target` hold exactly these files. A target that does already is compared and kept.

    What an interrupted try has fetched stays aside, and the next one goes on with it.
    """
    if await asyncio.to_thread(_holds, target, files):
        return
    with _aside(target) as aside:
        await asyncio.to_thread(_clear, aside, files)
        try:
            for file in files:
                await _fetch(store, prefix, file, aside, progress)
        except CorruptArtifact:  # trying again would not mend it
            await asyncio.to_thread(shutil.rmtree, aside)
            raise
        await asyncio.to_thread(_install, aside, target, files)


async def verified_stream(store: BlobStore, prefix: str, entry: FileEntry) -> AsyncIterator[bytes]:
    """The file's bytes, its last piece only once the digest is right.

    A file that is missing, of another size, or small and damaged fails before the first piece:
    then a wire can still say so.
    """
    await _require_size(store, prefix, entry)
    pieces = _verified(store.stream(prefix + entry.path), entry)
    first = await anext(pieces)
    return _chain(first, pieces)


async def range_stream(
    store: BlobStore, prefix: str, entry: FileEntry, start: int, end: int
) -> AsyncIterator[bytes]:
    """Only the whole has a digest: whoever puts ranges together compares it."""
    await _require_size(store, prefix, entry)
    return store.stream(prefix + entry.path, start=start, end=end)


async def _require_size(store: BlobStore, prefix: str, entry: FileEntry) -> None:
    if (size := await store.size(prefix + entry.path)) != entry.size:
        raise CorruptArtifact(entry.path, _sizes(size, entry))


async def _send(
    store: BlobStore, prefix: str, directory: Path, name: str, progress: Progress | None
) -> FileEntry:
    path = directory / validate_artifact_name(name)
    await asyncio.to_thread(refuse_pickle, path)
    hashing = asyncio.create_task(asyncio.to_thread(hash_file, path))
    try:
        await store.put_file(prefix + name, path, progress=progress)
    finally:
        digest = await hashing
    return FileEntry(name, path.stat().st_size, digest)


async def _fetch(
    store: BlobStore, prefix: str, file: FileEntry, folder: Path, progress: Progress | None
) -> None:
    path = folder / validate_artifact_name(file.path)
    if await asyncio.to_thread(_is, path, file):
        return
    try:
        digest = await store.fetch(prefix + file.path, path, progress=progress)
    except BlobNotFound:
        raise CorruptArtifact(file.path, "it is missing from the object store") from None
    if (size := path.stat().st_size) != file.size:
        raise CorruptArtifact(file.path, _sizes(size, file))
    if digest != file.sha256:
        raise CorruptArtifact(file.path, _digests(file))


def _is(path: Path, file: FileEntry) -> bool:
    return path.is_file() and path.stat().st_size == file.size and hash_file(path) == file.sha256


@contextmanager
def _aside(target: Path) -> Iterator[Path]:
    """A folder for this target, or one of our own while another process fetches into that."""
    usual = hidden(target, "incoming")
    descriptor = lock(usual, _open_folder)
    if descriptor is None:
        with TemporaryDirectory(dir=target.parent, ignore_cleanup_errors=True) as own:
            yield Path(own) / "files"
        return
    try:
        yield usual
    finally:
        with suppress(OSError):  # it has something in it, or was moved
            usual.rmdir()
        os.close(descriptor)


def _open_folder(path: Path) -> int:
    while True:
        try:
            path.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # it was moved in between
            continue
        except FileExistsError:  # the same, or a file is in the way
            if path.is_file():
                raise


def _clear(aside: Path, files: Iterable[FileEntry]) -> None:
    """What an earlier try for other files has left. Half of a file that is wanted stays."""
    aside.mkdir(exist_ok=True)
    wanted = {aside / file.path for file in files}
    kept = wanted | {each for path in wanted for each in partial_files(path)}
    for path in list(aside.rglob("*")):
        if path.is_symlink() or (path.is_file() and path not in kept):
            path.unlink()


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
            return shutil.rmtree(aside)
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
