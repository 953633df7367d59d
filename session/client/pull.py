"""Writes a version's files into a directory. A file stands under its name only once its digest has
been compared; what an earlier try left is not fetched again."""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from urllib.parse import quote

import httpx

from session.client.connection import Connection
from session.client.errors import ConnectionFailed, InvalidInput, ServerError
from session.client.push import Progress
from session.client.records import Page, StoredFile
from session.client.registry import version, version_path

_AT_ONCE = 4
_READ = 2**20
_ATTEMPTS = 5


async def pulled(connection: Connection, ref: str, directory: Path, progress: Progress) -> Path:
    """An alias is looked up once, so that all files are of one version."""
    found = await version(connection, ref)
    place = version_path(found.ref)
    files = (await connection.get(f"{place}/files", Page[StoredFile])).data
    targets = [(file, _inside(directory, file.path)) for file in files]
    gate, done, total = asyncio.Semaphore(_AT_ONCE), 0, sum(file.size for file in files)

    def moved(size: int) -> None:
        nonlocal done
        done += size
        progress("fetching", done, total)

    async def one(file: StoredFile, target: Path) -> None:
        async with gate:
            await _Fetch(connection, f"{place}/files/{quote(file.path)}", file, moved).to(target)

    try:
        async with asyncio.TaskGroup() as group:
            for file, target in targets:
                group.create_task(one(file, target))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return directory


def _inside(directory: Path, path: str) -> Path:
    """A service that we do not control names the paths: none may lead out of the directory."""
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts or not parts.parts:
        raise ServerError(500, f"the service lists {path!r}, which is outside the version")
    return directory / parts


class _Fetch:
    def __init__(
        self, connection: Connection, place: str, file: StoredFile, moved: Callable[[int], None]
    ) -> None:
        self._connection = connection
        self._place = place
        self._file = file
        self._moved = moved

    async def to(self, target: Path) -> None:
        if _size(target) is not None:
            if await asyncio.to_thread(_digest, target) == self._file.sha256:
                return self._moved(self._file.size)
            raise InvalidInput(f"{target} exists and is another file; nothing was overwritten")
        await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.partial")
        await self._complete(partial)
        if await asyncio.to_thread(_digest, partial) != self._file.sha256:
            partial.unlink()
            raise ServerError(500, f"{self._file.path} arrived damaged: its SHA-256 is another")
        partial.replace(target)

    async def _complete(self, partial: Path) -> None:
        """A body that is cut is read on from where it broke."""
        failures, known = 0, _size(partial)
        self._moved(known or 0)
        while known is None or known < self._file.size:
            before = known or 0
            try:
                await self._append(partial, before)
            except httpx.TransportError as error:
                failures += 1
                if failures >= _ATTEMPTS:
                    raise ConnectionFailed(self._connection.config.url, str(error)) from error
            known = _size(partial) or 0
            failures = 0 if known > before else failures

    async def _append(self, partial: Path, start: int) -> None:
        """A service that does not know ranges sends the file from its beginning."""
        known = {"Range": f"bytes={start}-", "If-Range": f'"{self._file.sha256}"'} if start else {}
        async with self._connection.streamed(self._place, known) as response:
            goes_on = response.status_code == httpx.codes.PARTIAL_CONTENT
            if not goes_on:
                self._moved(-start)
            with partial.open("ab" if goes_on else "wb") as file:
                async for piece in response.aiter_bytes(_READ):
                    await asyncio.to_thread(file.write, piece)
                    self._moved(len(piece))


def _size(path: Path) -> int | None:
    """None where there is no such file."""
    return path.stat().st_size if path.exists() else None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
