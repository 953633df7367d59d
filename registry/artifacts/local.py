"""The embedded object store: a directory on this machine."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from secrets import token_hex

from registry.artifacts.errors import BlobNotFound, InvalidArtifactName
from registry.artifacts.names import validate_artifact_name
from registry.artifacts.store import CHUNK, require_folder

_INCOMING = ".incoming"
_ATTEMPTS = 10


class LocalBlobStore:
    """One file an object. It is written aside and renamed, so a crash leaves no half object."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def put_file(self, key: str, path: Path) -> None:
        await asyncio.to_thread(self._put, key, lambda target: shutil.copyfile(path, target))

    async def put_bytes(self, key: str, data: bytes) -> None:
        await asyncio.to_thread(self._put, key, lambda target: target.write_bytes(data))

    async def read(self, key: str) -> bytes:
        return await asyncio.to_thread(self._existing(key).read_bytes)

    async def stream(self, key: str, *, chunk: int = CHUNK) -> AsyncIterator[bytes]:
        with self._existing(key).open("rb") as file:  # opening does not wait
            while data := await asyncio.to_thread(file.read, chunk):
                yield data

    async def fetch(self, key: str, path: Path) -> None:
        await asyncio.to_thread(_copy, self._existing(key), path)

    async def size(self, key: str) -> int | None:
        path = self._path(key)
        return path.stat().st_size if path.is_file() else None

    async def keys(self, prefix: str) -> list[str]:
        return await asyncio.to_thread(self._keys, prefix)

    async def delete(self, key: str) -> None:
        await asyncio.to_thread(self._delete, key)

    async def delete_folder(self, prefix: str) -> int:
        keys = await self.keys(require_folder(prefix))
        for key in keys:
            await self.delete(key)
        return len(keys)

    def _path(self, key: str) -> Path:
        validate_artifact_name(key)
        path = self._root / key
        if key.split("/")[0] == _INCOMING or not path.resolve().is_relative_to(
            self._root.resolve()
        ):
            raise InvalidArtifactName(key, "leads out of the object store")
        return path

    def _existing(self, key: str) -> Path:
        path = self._path(key)
        if not path.is_file():
            raise BlobNotFound(key)
        return path

    def _put(self, key: str, write: Callable[[Path], object]) -> None:
        target = self._path(key)
        aside = self._root / _INCOMING / token_hex(16)
        aside.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(aside)
            _sync(aside)
            _install(aside, target)
            _sync(target.parent)
        finally:
            aside.unlink(missing_ok=True)

    def _keys(self, prefix: str) -> list[str]:
        below = prefix.rpartition("/")[0]
        folder = self._path(below) if below else self._root
        files = (path for path in folder.rglob("*") if path.is_file())
        found = (path.relative_to(self._root) for path in files)
        keys = (path.as_posix() for path in found if path.parts[0] != _INCOMING)
        return sorted(key for key in keys if key.startswith(prefix))

    def _delete(self, key: str) -> None:
        """Folders that are empty now go too: a prefix is gone with its last object."""
        path = self._path(key)
        path.unlink(missing_ok=True)
        for folder in path.relative_to(self._root).parents[:-1]:
            try:
                (self._root / folder).rmdir()
            except OSError:  # not empty, or gone already
                return


def _install(aside: Path, target: Path) -> None:
    """A delete nearby may take away the folder that was just made; then it is made again."""
    for _ in range(_ATTEMPTS):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            aside.replace(target)
        except FileNotFoundError:
            continue
        return
    raise FileNotFoundError(target)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name[:200]}.{token_hex(8)}")
    try:
        shutil.copyfile(source, aside)
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """To the disk, not only to the kernel: the row that names the object comes after it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
