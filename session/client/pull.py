"""Writes a version's files into a directory. A file stands under its name only once its digest has
been compared; what an earlier try left is not fetched again."""

import asyncio
import hashlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path, PurePosixPath
from urllib.parse import quote

import httpx

from session.client.connection import Connection
from session.client.errors import ConnectionFailed, InvalidInput, ServerError
from session.client.push import Progress
from session.client.records import Page, StoredFile
from session.client.registry import version, version_path
from session.client.together import together

_AT_ONCE = 4
_READ = 2**20
_ATTEMPTS = 5
_FIRST_DELAY_S = 0.1


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

    await together(one(file, target) for file, target in targets)
    return directory


def _inside(directory: Path, path: str) -> Path:
    """A service that we do not control names the paths: none may lead out of the directory."""
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts or not parts.parts:
        raise ServerError(500, f"the service lists {path!r}, which is outside the version")
    return directory / parts


class _Fetch:
    """From the object store itself where the service sends us there, else through the service.

    What is half there is named after its target, and only one process writes it.
    """

    def __init__(
        self, connection: Connection, place: str, file: StoredFile, moved: Callable[[int], None]
    ) -> None:
        self._connection = connection
        self._place = place
        self._file = file
        self._moved = moved
        self._directly = True

    async def to(self, target: Path) -> None:
        await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
        if _size(target) is None:
            with _alone(target) as partial:
                if _size(target) is None:
                    return await self._complete(partial, target)
        if await asyncio.to_thread(_digest, target) != self._file.sha256:
            raise InvalidInput(f"{target} exists and is another file; nothing was overwritten")
        self._moved(self._file.size)

    async def _complete(self, partial: Path, target: Path) -> None:
        """What is there may be of another version: then all is fetched again, once."""
        known = _size(partial)
        await self._go_on(partial)
        if known and not await self._is_right(partial):
            self._moved(-self._file.size)
            os.truncate(partial, 0)
            await self._go_on(partial)
        if not await self._is_right(partial):
            os.truncate(partial, 0)
            raise ServerError(500, f"{self._file.path} arrived damaged: its SHA-256 is another")
        os.replace(partial, target)

    async def _is_right(self, partial: Path) -> bool:
        return await asyncio.to_thread(_digest, partial) == self._file.sha256

    async def _go_on(self, partial: Path) -> None:
        """A body that is cut is read on from where it broke, with a fresh address of the store."""
        failures, known = 0, _size(partial) or 0
        self._moved(known)
        while known < self._file.size:
            before, reason = known, "it sends less than the whole file"
            try:
                await self._append(partial, before)
            except (httpx.TransportError, _Refused) as error:
                reason = str(error)
            known = _size(partial) or 0
            failures = 0 if known > before else failures + 1
            if failures >= _ATTEMPTS:
                raise ConnectionFailed(self._connection.config.url, reason)
            if failures:
                self._directly = failures < 2  # it may be reached through the service alone
                await asyncio.sleep(_FIRST_DELAY_S * 2**failures)

    async def _append(self, partial: Path, start: int) -> None:
        known = {"Range": f"bytes={start}-", "If-Range": f'"{self._file.sha256}"'} if start else {}
        place = f"{self._place}?redirect=true" if self._directly else self._place
        async with self._connection.streamed(place, known) as response:
            url = response.headers.get("location")
            if url is None:
                return await self._take(response, partial, start)
        known.pop("If-Range", None)  # the store's own ETag is another
        async with _elsewhere(url, known) as response:
            if not response.is_success:
                raise _Refused(f"the object store answers {response.status_code}")
            await self._take(response, partial, start)

    async def _take(self, response: httpx.Response, partial: Path, start: int) -> None:
        """A server that does not know ranges sends the file from its beginning."""
        goes_on = response.status_code == httpx.codes.PARTIAL_CONTENT
        if not goes_on:
            self._moved(-start)
        with partial.open("ab" if goes_on else "wb") as file:
            async for piece in response.aiter_bytes(_READ):
                await asyncio.to_thread(file.write, piece)
                self._moved(len(piece))


class _Refused(Exception):
    """By the object store: the address may have expired."""


@asynccontextmanager
async def _elsewhere(url: str, headers: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
    """From a server that must not see our token. A bare transport: httpx's client logs addresses,
    and this one is a secret."""
    timeout = {"connect": 10.0, "read": 60.0, "write": 60.0, "pool": None}
    request = httpx.Request("GET", url, headers=headers, extensions={"timeout": timeout})
    async with httpx.AsyncHTTPTransport() as store:
        response = await store.handle_async_request(request)
        try:
            yield response
        finally:
            await response.aclose()


@contextmanager
def _alone(target: Path) -> Iterator[Path]:
    """Two that append to one file would spoil it. An empty one does not stay."""
    partial = target.with_name(f".{target.name}.partial")
    with _locked(partial, target):
        try:
            yield partial
        finally:
            if _size(partial) == 0:
                partial.unlink()


@contextmanager
def _locked(partial: Path, target: Path) -> Iterator[None]:
    with partial.open("ab") as file:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InvalidInput(f"another process is fetching {target} just now") from None
        yield


def _size(path: Path) -> int | None:
    """None where there is no such file."""
    return path.stat().st_size if path.exists() else None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
