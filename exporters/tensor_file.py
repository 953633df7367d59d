"""Safetensors headers read without torch, strictly: what a loader would trip over is refused."""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporters.base import BadFile

BITS: Mapping[str, int] = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "U16": 16,
    "I16": 16,
    "F16": 16,
    "BF16": 16,
    "U32": 32,
    "I32": 32,
    "F32": 32,
    "U64": 64,
    "I64": 64,
    "F64": 64,
}
LONGEST_HEADER = 100 * 2**20
START = 9
"""Bytes that tell a safetensors file, and how long its header is."""
_PICKLE_SUFFIXES = frozenset({".bin", ".ckpt", ".joblib", ".pickle", ".pkl", ".pt", ".pth"})


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor lies; `begin` and `end` count from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


def read_header(path: Path) -> dict[str, TensorEntry]:
    """The tensors of a file, once it is sure that they fill it exactly."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = header_length(path, file.read(START), size)
        file.seek(8)
        return parse_header(path, file.read(length), size)


def header_length(path: Path, start: bytes, size: int) -> int:
    """From the first `START` bytes of a file of `size` bytes, which need not lie at `path`."""
    if reason := _why_not_safetensors(start, size):
        raise BadFile(path.name, reason)
    (length,) = struct.unpack("<Q", start[:8])
    return int(length)


def parse_header(path: Path, raw: bytes, size: int) -> dict[str, TensorEntry]:
    """`raw` is what follows the length, as long as that says."""
    entries = {
        name: _entry(path, name, value)
        for name, value in _parse(path, raw).items()
        if name != "__metadata__"
    }
    _check_layout(path, entries, size - 8 - len(raw))
    return entries


def is_pickled(path: Path) -> bool:
    """Whether a file is, or by its suffix claims to be, what unpickling would execute."""
    with path.open("rb") as file:
        start = file.read(9)
    return path.suffix in _PICKLE_SUFFIXES or _is_pickle(start) or _is_zip(start)


def _is_pickle(start: bytes) -> bool:
    # A safetensors header of 128 bytes starts with 0x80 too, but its JSON begins at byte 8.
    return start[:1] == b"\x80" and start[1:2] in b"\2\3\4\5" and start[8:9] != b"{"


def _is_zip(start: bytes) -> bool:
    return start[:4] == b"PK\x03\x04"


def _why_not_safetensors(start: bytes, size: int) -> str | None:
    if len(start) == 9 and start[8:9] == b"{":
        (length,) = struct.unpack("<Q", start[:8])
        if length > LONGEST_HEADER or 8 + length > size:
            return f"its header says {length} bytes, the file has {size}: it is cut or damaged"
        return None
    if _is_zip(start):
        return "is a zip archive, as torch.save writes it: pickled weights are never loaded"
    if _is_pickle(start):
        return "is a pickle: pickled weights are never loaded"
    return "is not a safetensors file"


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise BadFile(path.name, "its header names a tensor twice")
        return found

    try:
        header = json.loads(raw, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise BadFile(path.name, "its header is not valid JSON") from error
    if not isinstance(header, dict):
        raise BadFile(path.name, "its header is not a JSON object")
    said = header.get("__metadata__", {})
    if not isinstance(said, dict) or not all(isinstance(value, str) for value in said.values()):
        raise BadFile(path.name, "its __metadata__ is not a mapping of texts")
    return header


def _entry(path: Path, name: str, value: Any) -> TensorEntry:
    try:
        begin, end = value["data_offsets"]
        entry = TensorEntry(value["dtype"], tuple(value["shape"]), begin, end)
        numbers = [*entry.shape, begin, end]
    except (TypeError, KeyError, ValueError) as error:
        raise BadFile(path.name, f"the header entry of {name} is malformed") from error
    if not isinstance(entry.dtype, str) or not all(type(n) is int and n >= 0 for n in numbers):
        raise BadFile(path.name, f"the header entry of {name} is malformed")
    if entry.dtype not in BITS:
        raise BadFile(path.name, f"{name} has the dtype {entry.dtype!r}, which is not supported")
    if entry.size * 8 != math.prod(entry.shape) * BITS[entry.dtype]:
        raise BadFile(path.name, f"{name} is {entry.size} bytes long, not what its shape says")
    return entry


def _check_layout(path: Path, entries: Mapping[str, TensorEntry], data_size: int) -> None:
    position = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != position:
            raise BadFile(path.name, f"{name} overlaps another tensor or leaves a hole before it")
        position = entry.end
    if position != data_size:
        raise BadFile(
            path.name, f"its tensors take {position} bytes, the file holds {data_size}: it is cut"
        )
