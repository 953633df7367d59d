"""The embedded object store: a directory on this machine."""

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from secrets import token_hex

from registry.artifacts.errors import BlobNotFound, InvalidArtifactName, MultipartNotFound
from registry.artifacts.local_incoming import INCOMING, Incoming, copy_bytes, sync
from registry.artifacts.names import validate_artifact_name
from registry.artifacts.partial import hidden
from registry.artifacts.parts import require_part_number
from registry.artifacts.store import (
    CHUNK,
    LONGEST_URL_S,
    Part,
    Progress,
    SignedUrl,
    StoredObject,
    Unfinished,
    require_folder,
)

_ATTEMPTS = 100
_NO_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class LocalBlobStore:
    """One file an object. It is written aside and renamed, so a crash leaves no half object."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._incoming = Incoming(root)

    async def put_file(self, key: str, path: Path, *, progress: Progress | None = None) -> None:
        def copy(target: Path) -> None:
            with path.open("rb") as file:
                copy_bytes(file, target, progress)

        await asyncio.to_thread(self._put, key, copy)

    async def put_bytes(self, key: str, data: bytes) -> None:
        await asyncio.to_thread(self._put, key, lambda target: target.write_bytes(data))

    async def read(self, key: str) -> bytes:
        return await asyncio.to_thread(self._read, key)

    async def stream(
        self, key: str, *, chunk: int = CHUNK, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        with self._open(key) as file:  # opening does not wait
            file.seek(start)
            left = sys.maxsize if end is None else end - start
            while data := await asyncio.to_thread(file.read, min(chunk, left)):
                left -= len(data)
                yield data

    async def fetch(self, key: str, path: Path, *, progress: Progress | None = None) -> str:
        return await asyncio.to_thread(self._fetch, key, path, progress)

    async def size(self, key: str) -> int | None:
        found = _stat(self._path(key))
        return found and found.st_size

    async def keys(self, prefix: str) -> list[str]:
        return [found.key for found in await self.objects(prefix)]

    async def objects(self, prefix: str) -> list[StoredObject]:
        found = await asyncio.to_thread(lambda: list(self._objects(prefix)))
        return sorted(found, key=lambda each: each.key)

    async def delete(self, key: str) -> None:
        await asyncio.to_thread(self._delete, key)

    async def delete_folder(self, prefix: str) -> int:
        keys = await self.keys(require_folder(prefix))
        for key in keys:
            await self.delete(key)
        return len(keys)

    async def signed_url(self, key: str, *, expires_s: int = LONGEST_URL_S) -> SignedUrl | None:
        return None

    async def begin_multipart(self, key: str) -> str:
        self._path(key)
        return await asyncio.to_thread(self._incoming.begin, key)

    async def put_part(self, key: str, upload_id: str, number: int, data: bytes) -> Part:
        require_part_number(key, number)
        return await asyncio.to_thread(self._incoming.put_part, key, upload_id, number, data)

    async def part_url(
        self, key: str, upload_id: str, number: int, *, expires_s: int = LONGEST_URL_S
    ) -> SignedUrl | None:
        return None

    async def parts(self, key: str, upload_id: str) -> list[Part]:
        return await asyncio.to_thread(self._incoming.parts, key, upload_id)

    async def finish_multipart(self, key: str, upload_id: str, parts: Sequence[Part]) -> None:
        try:
            await asyncio.to_thread(self._finish, key, upload_id, parts)
        except MultipartNotFound:
            if await self.size(key) != sum(part.size for part in parts):
                raise

    async def abort_multipart(self, key: str, upload_id: str) -> None:
        await asyncio.to_thread(self._incoming.abort, key, upload_id)

    async def unfinished(self, prefix: str) -> list[Unfinished]:
        return await asyncio.to_thread(self._incoming.unfinished, prefix)

    def _path(self, key: str) -> Path:
        validate_artifact_name(key)
        path = self._root / key
        if key.split("/")[0] == INCOMING or not path.resolve().is_relative_to(self._root.resolve()):
            raise InvalidArtifactName(key, "leads out of the object store")
        return path

    def _open(self, key: str) -> BufferedReader:
        """Whoever has it open reads it to its end, though it be deleted meanwhile."""
        try:
            return self._path(key).open("rb")
        except _NO_FILE:
            raise BlobNotFound(key) from None

    def _read(self, key: str) -> bytes:
        with self._open(key) as file:
            return file.read()

    def _fetch(self, key: str, target: Path, progress: Progress | None) -> str:
        with self._open(key) as source:
            target.parent.mkdir(parents=True, exist_ok=True)
            aside = hidden(target, token_hex(8))
            try:
                digest = copy_bytes(source, aside, progress)
                aside.replace(target)
                return digest
            finally:
                aside.unlink(missing_ok=True)

    def _put(self, key: str, write: Callable[[Path], object]) -> None:
        target = self._path(key)
        with self._incoming.aside(key) as aside:
            write(aside)
            _install(aside, target)

    def _finish(self, key: str, upload_id: str, parts: Sequence[Part]) -> None:
        target = self._path(key)
        with self._incoming.joined(key, upload_id, parts) as aside:
            _install(aside, target)

    def _objects(self, prefix: str) -> Iterator[StoredObject]:
        below = prefix.rpartition("/")[0]
        folder = self._path(below) if below else self._root
        for path in _files(folder):
            relative = path.relative_to(self._root)
            if relative.parts[0] == INCOMING or not relative.as_posix().startswith(prefix):
                continue
            if found := _stat(path):
                modified = datetime.fromtimestamp(found.st_mtime, UTC)
                yield StoredObject(relative.as_posix(), found.st_size, modified)

    def _delete(self, key: str) -> None:
        """Folders that are empty now go too: a prefix is gone with its last object."""
        path = self._path(key)
        path.unlink(missing_ok=True)
        for folder in path.relative_to(self._root).parents[:-1]:
            try:
                (self._root / folder).rmdir()
            except OSError:  # not empty, or gone already
                return


def _files(folder: Path) -> Iterator[Path]:
    """What lies below it throughout, whatever is written and deleted meanwhile."""

    def failed(error: OSError) -> None:
        if not isinstance(error, _NO_FILE):
            raise error

    for parent, _, names in os.walk(folder, onerror=failed):
        yield from (Path(parent, name) for name in names)


def _stat(path: Path) -> os.stat_result | None:
    """None where there is no file, or none any more."""
    try:
        found = path.stat()
    except _NO_FILE:
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _install(aside: Path, target: Path) -> None:
    """A delete nearby may take away the folder that was just made; then it is made again."""
    sync(aside)
    for attempt in range(_ATTEMPTS):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            aside.replace(target)
            break
        except (FileNotFoundError, FileExistsError):  # it was there, and is gone on a second look
            if attempt == _ATTEMPTS - 1:
                raise
    try:
        sync(target.parent)
    except FileNotFoundError:  # the object was deleted meanwhile, and its folder with it
        return
