"""An object store that is gone with its process."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from registry.artifacts.errors import BlobNotFound
from registry.artifacts.names import validate_artifact_name
from registry.artifacts.store import CHUNK, require_folder


class MemoryBlobStore:
    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}

    async def put_file(self, key: str, path: Path) -> None:
        await self.put_bytes(key, await asyncio.to_thread(path.read_bytes))

    async def put_bytes(self, key: str, data: bytes) -> None:
        self._blobs[validate_artifact_name(key)] = data

    async def read(self, key: str) -> bytes:
        try:
            return self._blobs[validate_artifact_name(key)]
        except KeyError:
            raise BlobNotFound(key) from None

    async def stream(self, key: str, *, chunk: int = CHUNK) -> AsyncIterator[bytes]:
        data = await self.read(key)
        for start in range(0, len(data), chunk):
            yield data[start : start + chunk]

    async def fetch(self, key: str, path: Path) -> None:
        data = await self.read(key)
        await asyncio.to_thread(_write, path, data)

    async def size(self, key: str) -> int | None:
        blob = self._blobs.get(validate_artifact_name(key))
        return None if blob is None else len(blob)

    async def keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self._blobs if key.startswith(prefix))

    async def delete(self, key: str) -> None:
        self._blobs.pop(validate_artifact_name(key), None)

    async def delete_folder(self, prefix: str) -> int:
        keys = await self.keys(require_folder(prefix))
        for key in keys:
            await self.delete(key)
        return len(keys)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
