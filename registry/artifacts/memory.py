"""An object store that is gone with its process."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from secrets import token_hex

from registry.artifacts.errors import BlobNotFound, MultipartNotFound
from registry.artifacts.names import validate_artifact_name
from registry.artifacts.parts import require_part_number, require_whole
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
from registry.kit.clock import now


@dataclass(frozen=True, slots=True)
class _Blob:
    data: bytes
    modified: datetime = field(default_factory=now)


@dataclass(frozen=True, slots=True)
class _Arrival:
    key: str
    started: datetime = field(default_factory=now)
    parts: dict[int, bytes] = field(default_factory=dict)

    def listed(self) -> list[Part]:
        return [_part(number, data) for number, data in sorted(self.parts.items())]


class MemoryBlobStore:
    def __init__(self) -> None:
        self._blobs: dict[str, _Blob] = {}
        self._arrivals: dict[str, _Arrival] = {}

    async def put_file(self, key: str, path: Path, *, progress: Progress | None = None) -> None:
        data = await asyncio.to_thread(path.read_bytes)
        await self.put_bytes(key, data)
        _tell(progress, data)

    async def put_bytes(self, key: str, data: bytes) -> None:
        self._blobs[validate_artifact_name(key)] = _Blob(data)

    async def read(self, key: str) -> bytes:
        try:
            return self._blobs[validate_artifact_name(key)].data
        except KeyError:
            raise BlobNotFound(key) from None

    async def stream(
        self, key: str, *, chunk: int = CHUNK, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        data = (await self.read(key))[start:end]
        for offset in range(0, len(data), chunk):
            yield data[offset : offset + chunk]

    async def fetch(self, key: str, path: Path, *, progress: Progress | None = None) -> str:
        data = await self.read(key)
        await asyncio.to_thread(_write, path, data)
        _tell(progress, data)
        return hashlib.sha256(data).hexdigest()

    async def size(self, key: str) -> int | None:
        blob = self._blobs.get(validate_artifact_name(key))
        return None if blob is None else len(blob.data)

    async def keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self._blobs if key.startswith(prefix))

    async def objects(self, prefix: str) -> list[StoredObject]:
        found = ((key, self._blobs[key]) for key in await self.keys(prefix))
        return [StoredObject(key, len(blob.data), blob.modified) for key, blob in found]

    async def delete(self, key: str) -> None:
        self._blobs.pop(validate_artifact_name(key), None)

    async def delete_folder(self, prefix: str) -> int:
        keys = await self.keys(require_folder(prefix))
        for key in keys:
            await self.delete(key)
        return len(keys)

    async def signed_url(self, key: str, *, expires_s: int = LONGEST_URL_S) -> SignedUrl | None:
        return None

    async def begin_multipart(self, key: str) -> str:
        arrival = token_hex(16)
        self._arrivals[arrival] = _Arrival(validate_artifact_name(key))
        return arrival

    async def put_part(self, key: str, upload_id: str, number: int, data: bytes) -> Part:
        require_part_number(key, number)
        self._require(key, upload_id).parts[number] = bytes(data)
        return _part(number, data)

    async def part_url(
        self, key: str, upload_id: str, number: int, *, expires_s: int = LONGEST_URL_S
    ) -> SignedUrl | None:
        return None

    async def parts(self, key: str, upload_id: str) -> list[Part]:
        return self._require(key, upload_id).listed()

    async def finish_multipart(self, key: str, upload_id: str, parts: Sequence[Part]) -> None:
        try:
            arrival = self._require(key, upload_id)
        except MultipartNotFound:
            if await self.size(key) == sum(part.size for part in parts):
                return
            raise
        require_whole(key, parts, arrival.listed())
        await self.put_bytes(key, b"".join(arrival.parts[part.number] for part in parts))
        del self._arrivals[upload_id]

    async def abort_multipart(self, key: str, upload_id: str) -> None:
        arrival = self._arrivals.get(upload_id)
        if arrival is not None and arrival.key == key:
            del self._arrivals[upload_id]

    async def unfinished(self, prefix: str) -> list[Unfinished]:
        found = sorted(self._arrivals.items(), key=lambda each: (each[1].key, each[1].started))
        return [
            Unfinished(
                arrival.key, upload_id, arrival.started, sum(map(len, arrival.parts.values()))
            )
            for upload_id, arrival in found
            if arrival.key.startswith(prefix)
        ]

    def _require(self, key: str, upload_id: str) -> _Arrival:
        arrival = self._arrivals.get(upload_id)
        if arrival is None or arrival.key != key:
            raise MultipartNotFound(key)
        return arrival


def _part(number: int, data: bytes) -> Part:
    return Part(number, len(data), hashlib.sha256(data).hexdigest())


def _tell(progress: Progress | None, data: bytes) -> None:
    if progress is not None:
        progress(len(data))


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
