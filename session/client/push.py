"""Brings a directory of weights into the registry, and goes on where an earlier try ended.

The service knows the push by a token that is made of what is pushed, so nothing is kept here: the
same directory pushed again is the same upload, and after its commit the same version.
"""

import asyncio
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import httpx

from session.client.connection import Connection
from session.client.errors import ConflictError, ConnectionFailed, InvalidInput
from session.client.records import (
    BaseModelInfo,
    FileProgress,
    Page,
    PartInfo,
    UploadInfo,
    VersionInfo,
)
from session.client.registry import every, group_path, version
from session.client.together import together

if TYPE_CHECKING:
    from exporters.directory import Layout

Progress = Callable[[str, int, int], None]
"""Told what is going on, how many bytes of it are done, and of how many."""

_AT_ONCE = 4
_READ = 2**20
_MARGIN = timedelta(seconds=60)
_ROUNDS = 5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 8.0
_FIRST_CONTACT_S = 10.0


def silent(what: str, done: int, total: int) -> None:
    """For who does not want to know."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a caller says of the version that is to come of a directory."""

    directory: Path
    group: str
    base_model: str | None = None
    kind: str | None = None
    description: str = ""
    metadata: Mapping[str, str] | None = None
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class _Local:
    path: Path
    size: int
    sha256: str


async def pushed(connection: Connection, wish: Wish, progress: Progress) -> VersionInfo:
    with TemporaryDirectory() as aside:
        kind, paths, named = await asyncio.to_thread(_looked_through, wish, Path(aside))
        base = await _base(connection, wish.base_model, named)
        files = await _hashed(paths, progress)
        request = _request(wish, kind, base, files)
        async with httpx.AsyncHTTPTransport() as store:
            upload = await _Push(connection, store, wish.group, files, progress).run(request)
    assert upload.version is not None
    return await version(connection, upload.version)


def _looked_through(wish: Wish, aside: Path) -> tuple[str, Mapping[str, Path], str | None]:
    """Kind, files by their path in a version, and the base that an adapter names. What the service
    would refuse by its headers is refused here, before anything is sent."""
    from exporters import directory
    from exporters.base import BadFile

    try:
        layout = _naming_base(directory.recognise(wish.directory, wish.kind), wish, aside)
        content = directory.examine(layout)
    except BadFile as error:
        # It names a file by its path in a version; the user's directory may have no such folders.
        is_flat = not (wish.directory / "checkpoints").is_dir()
        name = re.sub(r"^checkpoints/[^/]*/", "", error.file) if is_flat else error.file
        raise InvalidInput(f"{name}: {error.reason}") from None
    except OSError as error:
        raise InvalidInput(f"{wish.directory} cannot be read: {error}") from None
    named = content.adapter.config.base_name if content.adapter else None
    return layout.kind, layout.files, named or None


def _naming_base(layout: "Layout", wish: Wish, aside: Path) -> "Layout":
    """PEFT writes where the base lay on the machine of the training. What is sent says its
    registered name instead, in a copy of that one file."""
    from exporters import directory

    name = f"{directory.ADAPTER}/{directory.ADAPTER_CONFIG}"
    if name not in layout.files:
        return layout
    try:
        said = json.loads(layout.files[name].read_text(encoding="utf-8"))
        base = said[directory.ADAPTER_BASE]
    except (ValueError, RecursionError, KeyError, TypeError):
        return layout  # looked at, and told, with all the other files
    if not isinstance(base, str) or not directory.is_absolute(base):
        return layout
    if wish.base_model is None:
        file = layout.files[name].relative_to(wish.directory).as_posix()
        raise InvalidInput(
            f"{file}: {directory.ADAPTER_BASE} is the absolute path {base[:80]!r}; say which "
            "registered base model that is: --base NAME, or base_model= in Python"
        )
    copy = aside / directory.ADAPTER_CONFIG
    copy.write_text(json.dumps({**said, directory.ADAPTER_BASE: wish.base_model}, indent=2))
    return replace(layout, files={**layout.files, name: copy})


async def _base(connection: Connection, wished: str | None, named: str | None) -> str:
    known = await every(connection, "/v1/models", Page[BaseModelInfo])
    names = {model.name for model in known}
    chosen = wished or named
    if chosen in names:
        return str(chosen)
    have = ", ".join(sorted(names)) or "none"
    if wished:
        reason = f"no base model is named {wished!r}"
    elif named:
        reason = f"adapter_config.json names the base {named!r}, which is none of the service's"
    else:
        reason = "the directory names no base model"
    raise InvalidInput(f"base_model: {reason}; say which of these it fits: {have}")


async def _hashed(paths: Mapping[str, Path], progress: Progress) -> dict[str, _Local]:
    sizes = {name: path.stat().st_size for name, path in paths.items()}
    total, done, found = sum(sizes.values()), 0, {}

    def hash_one(path: Path) -> str:
        nonlocal done
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while piece := file.read(_READ):
                digest.update(piece)
                done += len(piece)
                progress("hashing", done, total)
        return digest.hexdigest()

    for name, path in paths.items():
        sha256 = await asyncio.to_thread(hash_one, path)
        found[name] = _Local(path, sizes[name], sha256)
    return found


def _request(wish: Wish, kind: str, base: str, files: Mapping[str, _Local]) -> dict[str, Any]:
    listed = [
        {"path": name, "size": file.size, "sha256": file.sha256} for name, file in files.items()
    ]
    said = {
        "kind": kind,
        "base_model": base,
        "files": listed,
        "parent": wish.parent,
        "description": wish.description,
        "metadata": dict(wish.metadata or {}),
    }
    token = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
    return {"token": token, **said}


class _Push:
    """One directory on its way. `store` speaks to the object store, past the service: its addresses
    carry a right, so nothing that logs requests may see them."""

    def __init__(
        self,
        connection: Connection,
        store: httpx.AsyncBaseTransport,
        group: str,
        files: Mapping[str, _Local],
        progress: Progress,
    ) -> None:
        self._connection = connection
        self._store = store
        self._path = f"{group_path(group)}/uploads"
        self._files = files
        self._progress = progress
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._has_met = False

    async def run(self, request: Mapping[str, Any]) -> UploadInfo:
        """Until the service has made the version, or says why it makes none."""
        upload = await self._connection.post_again(self._path, request, UploadInfo)
        for _ in range(_ROUNDS):
            await self._send(upload)
            try:
                return await self._committed(upload)
            except ConflictError as error:  # the store has lost parts, or somebody has aborted it
                refused = error
            upload = await self._connection.post_again(self._path, request, UploadInfo)
        raise refused

    async def _committed(self, upload: UploadInfo) -> UploadInfo:
        place = f"{self._path}/{upload.id}/commit"
        self._progress("checking", 0, 0)
        while upload.version is None:
            upload = await self._connection.post_again(place, {}, UploadInfo)
        return upload

    async def _send(self, upload: UploadInfo) -> None:
        """What is missing, until nothing is; the service says anew what that is after each try."""
        clock = asyncio.get_running_loop().time
        since, pause, left = clock(), _FIRST_PAUSE_S, math.inf
        while missing := _missing(upload):
            self._say(missing)
            sending = (self._send_part(file, part) for file, part in missing if part.url)
            outcomes = await together(sending)
            upload = await self._connection.get(f"{self._path}/{upload.id}", UploadInfo)
            if (now_left := len(_missing(upload))) < left:
                since, pause, left = clock(), _FIRST_PAUSE_S, now_left
                continue
            if clock() > since + self._patience():
                reasons = [reason for reason in outcomes if reason]
                raise ConnectionFailed("the object store", reasons[0] if reasons else "no reason")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _send_part(self, file: FileProgress, part: PartInfo) -> str | None:
        """Why it did not arrive, if it did not."""
        assert part.url is not None
        async with self._gate:
            if part.expires_at and part.expires_at < datetime.now(UTC) + _MARGIN:
                return "its address has expired"
            data = await asyncio.to_thread(self._read, file, part)
            if part.url.startswith("/"):
                try:
                    await self._connection.put(part.url, data)
                except ConflictError as error:  # the same push elsewhere has come to its commit
                    return str(error)
            elif reason := await self._put(part.url, data):
                return reason
        self._has_met = True
        self._done += part.size
        self._progress("sending", self._done, self._total)
        return None

    async def _put(self, url: str, data: bytes) -> str | None:
        timeout = {"connect": 10.0, "read": 60.0, "write": 60.0, "pool": None}
        request = httpx.Request("PUT", url, content=data, extensions={"timeout": timeout})
        try:
            response = await self._store.handle_async_request(request)
            await response.aread()
            await response.aclose()
        except httpx.TransportError as error:
            return str(error) or type(error).__name__
        return None if response.is_success else f"it answers {response.status_code}"

    def _read(self, file: FileProgress, part: PartInfo) -> bytes:
        local = self._files[file.path]
        with local.path.open("rb") as stream:
            stream.seek((part.number - 1) * file.part_size)
            data = stream.read(part.size)
        if len(data) != part.size:
            raise InvalidInput(f"{local.path} has changed since it was hashed; push it again")
        return data

    def _say(self, missing: Sequence[tuple[FileProgress, PartInfo]]) -> None:
        self._total = sum(file.size for file in self._files.values())
        self._done = self._total - sum(part.size for _, part in missing)
        self._progress("sending", self._done, self._total)

    def _patience(self) -> float:
        """A store that was never reached may not be reachable from here at all."""
        timeout = self._connection.config.timeout_s
        return timeout if self._has_met else min(timeout, _FIRST_CONTACT_S)


def _missing(upload: UploadInfo) -> list[tuple[FileProgress, PartInfo]]:
    return [(file, part) for file in upload.files for part in file.missing]
