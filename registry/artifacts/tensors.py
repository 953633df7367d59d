"""Tensors of a version, one after the other, as they come from the store.

Every file is read once, from its first byte to its last, and compared with its digest on the way:
a tensor of a damaged file may be seen, but the end of its stream then raises CorruptArtifact.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from exporters.base import BadFile
from exporters.tensor_file import START, TensorEntry, header_length, parse_header
from exporters.weight_change import Tensor
from registry.artifacts.errors import BlobNotFound, CorruptArtifact
from registry.artifacts.manifest import FileEntry
from registry.artifacts.store import BlobStore
from registry.artifacts.transfer import materialize, verified_stream

SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True)
class TensorFile:
    """`data` is where its tensors begin."""

    entry: FileEntry
    data: int
    tensors: Mapping[str, TensorEntry]

    @property
    def order(self) -> list[str]:
        """As they lie in the file."""
        return sorted(self.tensors, key=lambda name: (self.tensors[name].begin, name))


@dataclass(frozen=True, slots=True)
class Weights:
    """The safetensors files of one part of a version."""

    store: BlobStore
    prefix: str
    files: Sequence[TensorFile]

    @property
    def order(self) -> list[str]:
        return [name for file in self.files for name in file.order]

    async def stream(self) -> AsyncGenerator[tuple[str, Tensor]]:
        """In their order, with no more than one of them held at a time."""
        for file in self.files:
            async with aclosing(_open(self.store, self.prefix, file.entry)) as pieces:
                reader = _Reader(file.entry.path, pieces)
                await reader.take(file.data)
                for name in file.order:
                    found = file.tensors[name]
                    yield name, Tensor(found.dtype, found.shape, await reader.take(found.size))
                await reader.end()

    async def stream_as(
        self, order: Sequence[str], scratch: Path
    ) -> AsyncGenerator[tuple[str, Tensor]]:
        """In an order of somebody else's, for which the files are fetched to a folder first."""
        folder = scratch / "files"
        await materialize(self.store, self.prefix, [file.entry for file in self.files], folder)
        holder = {name: file for file in self.files for name in file.tensors}
        for name in order:
            file, found = holder[name], holder[name].tensors[name]
            path, begin = folder / file.entry.path, file.data + found.begin
            raw = await asyncio.to_thread(_read, path, begin, found.size)
            yield name, Tensor(found.dtype, found.shape, raw)


async def open_weights(store: BlobStore, prefix: str, files: Sequence[FileEntry]) -> Weights:
    """Reads the headers alone. `files` may hold others, which are left aside."""
    found = sorted(file for file in files if file.path.endswith(SUFFIX))
    return Weights(store, prefix, [await _header(store, prefix, file) for file in found])


async def _header(store: BlobStore, prefix: str, entry: FileEntry) -> TensorFile:
    path = Path(entry.path)
    async with aclosing(_unverified(store, prefix, entry)) as pieces:
        reader = _Reader(entry.path, pieces)
        try:
            start = await reader.take(min(START, entry.size))
            length = header_length(path, start, entry.size)
            rest = await reader.take(length - len(start[8:]))
            tensors = parse_header(path, start[8:] + rest, entry.size)
        except BadFile as error:
            raise CorruptArtifact(entry.path, error.reason) from None
    return TensorFile(entry, 8 + length, tensors)


async def _open(store: BlobStore, prefix: str, entry: FileEntry) -> AsyncGenerator[bytes]:
    async for piece in await verified_stream(store, prefix, entry):
        yield piece


async def _unverified(store: BlobStore, prefix: str, entry: FileEntry) -> AsyncGenerator[bytes]:
    """For the beginning of a file, which is read again with the rest of it."""
    try:
        async for piece in store.stream(prefix + entry.path):
            yield piece
    except BlobNotFound:
        raise CorruptArtifact(entry.path, "it is missing from the object store") from None


class _Reader:
    """Takes so many bytes at a time from pieces that come as they come."""

    def __init__(self, path: str, pieces: AsyncIterator[bytes]) -> None:
        self._path = path
        self._pieces = pieces
        self._held = bytearray()

    async def take(self, count: int) -> bytes:
        while len(self._held) < count:
            piece = await anext(self._pieces, None)
            if piece is None:
                raise CorruptArtifact(self._path, "it is cut")
            self._held += piece
        taken = bytes(memoryview(self._held)[:count])
        del self._held[:count]
        return taken

    async def end(self) -> None:
        """The last piece comes only where the digest is right."""
        async for _ in self._pieces:
            pass


def _read(path: Path, begin: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(begin)
        return file.read(size)
