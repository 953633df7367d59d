"""The port to where bytes lie: keys and bytes, nothing of versions."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from registry.artifacts.errors import InvalidArtifactName
from registry.artifacts.names import validate_artifact_name

CHUNK = 2**20


class BlobStore(Protocol):
    """An object appears whole or not at all. A missing one raises BlobNotFound."""

    async def put_file(self, key: str, path: Path) -> None: ...

    async def put_bytes(self, key: str, data: bytes) -> None: ...

    async def read(self, key: str) -> bytes: ...

    def stream(self, key: str, *, chunk: int = CHUNK) -> AsyncIterator[bytes]: ...

    async def fetch(self, key: str, path: Path) -> None:
        """Write the object to a file of its own, which appears whole, and make its folder."""

    async def size(self, key: str) -> int | None:
        """None where there is no such object."""

    async def keys(self, prefix: str) -> list[str]:
        """Sorted; `prefix` is plain text, so `a/b` finds `a/bc` too."""

    async def delete(self, key: str) -> None:
        """A missing object is deleted already."""

    async def delete_folder(self, prefix: str) -> int:
        """Every object whose key starts with `prefix`, which ends in a slash: how many that were.

        One that comes meanwhile may stay. After a failure, do it again.
        """


def require_folder(prefix: str) -> str:
    """Without its slash, `runs/1` would mean `runs/10` too."""
    if not prefix.endswith("/"):
        raise InvalidArtifactName(prefix[:80], "does not end in a slash, so it is no folder")
    validate_artifact_name(prefix[:-1])
    return prefix
