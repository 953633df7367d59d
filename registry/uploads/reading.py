"""Reads an upload back from the store: every byte is hashed, and as much as a check needs is kept
on the disk, which of weights is the header alone."""

import asyncio
import hashlib
import struct
from pathlib import Path
from types import TracebackType
from typing import Self

from exporters.tensor_file import LONGEST_HEADER
from registry.artifacts.errors import BlobNotFound
from registry.artifacts.names import validate_artifact_name
from registry.artifacts.store import BlobStore
from registry.kit.tasks import each
from registry.uploads.errors import UploadFailed, UploadIncomplete
from registry.uploads.model import Upload, UploadFile

_AT_ONCE = 4


async def read_back(store: BlobStore, upload: Upload, folder: Path) -> None:
    """Raise for the first file that is not what the manifest says."""
    await each(
        upload.files, lambda file: _read(store, upload.prefix, file, folder), at_once=_AT_ONCE
    )


async def _read(store: BlobStore, prefix: str, file: UploadFile, folder: Path) -> None:
    target = folder / validate_artifact_name(file.path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _Copy(target) as copy:
        try:
            async for piece in store.stream(prefix + file.path):
                await asyncio.to_thread(copy.take, piece)
        except BlobNotFound:
            raise UploadIncomplete(file.path, range(1, file.part_count + 1)) from None
    if copy.size != file.size:
        raise UploadFailed(f"{file.path}: it has {copy.size} bytes instead of {file.size}")
    if (found := copy.digest.hexdigest()) != file.sha256:
        raise UploadFailed(f"{file.path}: its SHA-256 is {found} instead of {file.sha256}")


class _Copy:
    """As large as the original. Where weights would be, it has a hole that takes no room."""

    def __init__(self, target: Path) -> None:
        self.digest = hashlib.sha256()
        self.size = 0
        self._file = target.open("w+b")
        self._kept = 0
        self._wanted: int | None = 8 if target.suffix == ".safetensors" else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.truncate(self.size)
        self._file.close()

    def take(self, piece: bytes) -> None:
        self.digest.update(piece)
        self.size += len(piece)
        while piece and (self._wanted is None or self._kept < self._wanted):
            part = piece if self._wanted is None else piece[: self._wanted - self._kept]
            self._file.write(part)
            self._kept += len(part)
            piece = piece[len(part) :]
            if self._wanted == self._kept == 8:
                self._wanted = 8 + min(self._header_size(), LONGEST_HEADER)

    def _header_size(self) -> int:
        self._file.seek(0)
        (size,) = struct.unpack("<Q", self._file.read(8))
        return int(size)
