"""The port to where bytes lie: keys and bytes, nothing of versions."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

CHUNK = 2**20


class BlobStore(Protocol):
    """An object appears whole or not at all. A missing one raises BlobNotFound."""

    async def put_file(self, key: str, path: Path) -> None: ...

    async def put_bytes(self, key: str, data: bytes) -> None: ...

    async def read(self, key: str) -> bytes: ...

    def stream(self, key: str, *, chunk: int = CHUNK) -> AsyncIterator[bytes]: ...

    async def fetch(self, key: str, path: Path) -> None:
        """Write the object to a file of its own; folders on the way are made."""

    async def size(self, key: str) -> int | None:
        """None where there is no such object."""

    async def keys(self, prefix: str) -> list[str]:
        """Sorted; `prefix` is plain text, so `a/b` finds `a/bc` too."""

    async def delete(self, key: str) -> None:
        """A missing object is deleted already."""
