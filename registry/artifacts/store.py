"""The port to where bytes lie: keys and bytes, nothing of versions."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from registry.artifacts.errors import InvalidArtifactName
from registry.artifacts.names import validate_artifact_name

# Larger pieces would be given back to the system and asked for again, one by one: that costs more
# time than all the rest.
CHUNK = 256 * 2**10
LONGEST_URL_S = 900

Progress = Callable[[int], None]
"""Told of bytes that have moved, from any thread; a negative number takes some back."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What a listing says of an object."""

    key: str
    size: int
    modified: datetime


@dataclass(frozen=True, slots=True)
class SignedUrl:
    """Whoever holds it has the one right that it carries, until it expires. It goes into no log."""

    url: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Part:
    """`etag` is the store's own name for these bytes at this place."""

    number: int
    size: int
    etag: str


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An upload in parts that was begun, and neither finished nor aborted."""

    key: str
    upload_id: str
    started: datetime
    size: int
    """The bytes of its parts, which cost space and which no listing of objects shows."""


class BlobStore(Protocol):
    """An object appears whole or not at all. A missing one raises BlobNotFound."""

    async def put_file(self, key: str, path: Path, *, progress: Progress | None = None) -> None: ...

    async def put_bytes(self, key: str, data: bytes) -> None: ...

    async def read(self, key: str) -> bytes: ...

    def stream(
        self, key: str, *, chunk: int = CHUNK, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        """From byte `start` up to, and without, byte `end`, which the object has."""

    async def fetch(self, key: str, path: Path, *, progress: Progress | None = None) -> str:
        """Write the object to a file of its own, which appears whole, and make its folder.

        Its SHA-256 is made while it comes. Another try, of any process, goes on where one ended.
        """

    async def size(self, key: str) -> int | None:
        """None where there is no such object."""

    async def keys(self, prefix: str) -> list[str]:
        """Sorted; `prefix` is plain text, so `a/b` finds `a/bc` too."""

    async def objects(self, prefix: str) -> list[StoredObject]:
        """Those of `keys`, with what a listing says of them."""

    async def delete(self, key: str) -> None:
        """A missing object is deleted already."""

    async def delete_folder(self, prefix: str) -> int:
        """Every object whose key starts with `prefix`, which ends in a slash: how many that were.

        One that comes meanwhile may stay. After a failure, do it again.
        """

    async def signed_url(self, key: str, *, expires_s: int = LONGEST_URL_S) -> SignedUrl | None:
        """Lets whoever holds it read this one object; None where the store is reached through us
        alone. It is not asked whether there is such an object."""

    async def begin_multipart(self, key: str) -> str:
        """The id of an upload in parts: any process may go on with it, on any day."""

    async def put_part(self, key: str, upload_id: str, number: int, data: bytes) -> Part:
        """Numbers go from 1 to 10,000. Putting one again replaces it."""

    async def part_url(
        self, key: str, upload_id: str, number: int, *, expires_s: int = LONGEST_URL_S
    ) -> SignedUrl | None:
        """Takes one PUT of the part's bytes; None where the store is reached through us alone."""

    async def parts(self, key: str, upload_id: str) -> list[Part]:
        """Those that are there, by number. Raises MultipartNotFound once it is over."""

    async def finish_multipart(self, key: str, upload_id: str, parts: Sequence[Part]) -> None:
        """The object is these parts, in the order of their numbers; all but the last have at least
        5 MiB. Finishing again is success: the object is there, and as large as its parts."""

    async def abort_multipart(self, key: str, upload_id: str) -> None:
        """An unknown one is aborted already."""

    async def unfinished(self, prefix: str) -> list[Unfinished]:
        """Some servers know no prefix here: with them, only a whole key finds its uploads."""


def require_folder(prefix: str) -> str:
    """Without its slash, `runs/1` would mean `runs/10` too."""
    if not prefix.endswith("/"):
        raise InvalidArtifactName(prefix[:80], "does not end in a slash, so it is no folder")
    validate_artifact_name(prefix[:-1])
    return prefix
