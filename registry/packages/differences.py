"""Two versions side by side: what their rows say, which files differ, how far the weights moved."""

import asyncio
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from exporters.peft_adapter import half_of
from exporters.weight_change import (
    Change,
    Tensor,
    Update,
    tensor_change,
    update_change,
)
from registry.artifacts.manifest import FileEntry
from registry.artifacts.store import BlobStore
from registry.artifacts.tensors import Weights, open_weights
from registry.packages.model import ADAPTER, MERGED, Package

Item = Tensor | Update
Items = AsyncGenerator[tuple[str, Item]]


@dataclass(frozen=True, slots=True)
class Side:
    package: Package
    files: Sequence[FileEntry]


@dataclass(frozen=True, slots=True)
class FieldChange:
    """None where a side does not have it."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class FileChanges:
    added: Sequence[FileEntry]
    removed: Sequence[FileEntry]
    changed: Sequence[tuple[FileEntry, FileEntry]]
    same: int


@dataclass(frozen=True, slots=True)
class Moved:
    """One tensor, or one LoRA module with its two factors."""

    name: str
    shape: Sequence[int]
    change: Change
    factors: Mapping[str, Change]


@dataclass(slots=True)
class Total:
    """Over all tensors that both versions have in one shape: as one long vector."""

    tensors: int = 0
    compared: int = 0
    squares: float = 0.0

    def add(self, moved: Moved) -> None:
        self.tensors += 1
        if moved.change.difference is not None:
            self.compared += 1
            self.squares += moved.change.difference**2

    @property
    def difference(self) -> float:
        return math.sqrt(self.squares)


def configuration(before: Package, after: Package) -> list[FieldChange]:
    """What was trained, and from what: the fields that are not the same."""
    old, new = _fields(before), _fields(after)
    return [
        FieldChange(name, old.get(name), new.get(name))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def numbers(before: Mapping[str, float], after: Mapping[str, float]) -> list[FieldChange]:
    """Every name that either has, the equal ones too."""
    names = sorted(before.keys() | after.keys())
    return [FieldChange(name, before.get(name), after.get(name)) for name in names]


def files(before: Sequence[FileEntry], after: Sequence[FileEntry]) -> FileChanges:
    """By path and digest."""
    old, new = ({file.path: file for file in side} for side in (before, after))
    shared = sorted(old.keys() & new.keys())
    changed = [(old[path], new[path]) for path in shared if old[path] != new[path]]
    return FileChanges(
        added=[new[path] for path in sorted(new.keys() - old.keys())],
        removed=[old[path] for path in sorted(old.keys() - new.keys())],
        changed=changed,
        same=len(shared) - len(changed),
    )


class Tensors:
    """The weights of two versions: the full ones where both are merged, else their adapters."""

    def __init__(self, before: Weights, after: Weights, scalings: tuple[float, float]) -> None:
        self._before = before
        self._after = after
        self._scalings = scalings

    @classmethod
    async def open(cls, store: BlobStore, before: Side, after: Side) -> "Tensors":
        """Reads the headers; what is wrong with them is said here."""
        full = before.package.is_promotable and after.package.is_promotable
        part = MERGED if full else ADAPTER
        opened = [
            await open_weights(
                store, side.package.prefix, [f for f in side.files if f.path.startswith(part)]
            )
            for side in (before, after)
        ]
        return cls(opened[0], opened[1], (_scaling(before.package), _scaling(after.package)))

    async def moved(self) -> AsyncGenerator[Moved]:
        """One after the other, with no more held than one of each version."""
        with TemporaryDirectory(prefix="modelyard-diff-") as scratch:
            old, new = self._before.order, self._after.order
            before = _items(self._before.stream(), self._scalings[0])
            if _agree(old, new):
                stream = self._after.stream()
            else:  # other shards: the second version is fetched, and read in the first one's order
                shared = [name for name in old if name in set(new)]
                rest = [name for name in new if name not in set(old)]
                stream = self._after.stream_as([*shared, *rest], Path(scratch))
            after = _items(stream, self._scalings[1])
            names = set(_names(old)), set(_names(new))
            async with aclosing(before), aclosing(after):
                async for name, one, other in _paired(before, after, *names):
                    yield await asyncio.to_thread(_compare, name, one, other)


def _fields(package: Package) -> dict[str, Any]:
    return {
        "base_digest": package.base_digest,
        "base_model": package.base_model,
        "kind": package.kind,
        "parent": package.parent.ref if package.parent else None,
        "session": package.session_id,
        "step": package.step,
        **{f"lora.{name}": value for name, value in package.lora.items()},
        **{f"metadata.{name}": value for name, value in package.user_metadata.items()},
    }


def _scaling(package: Package) -> float:
    lora = package.lora
    return float(lora["alpha"]) / float(lora["rank"]) if lora.get("rank") else 1.0


def _agree(before: Sequence[str], after: Sequence[str]) -> bool:
    """Whether the tensors that both have lie in the same order."""
    shared = set(before) & set(after)
    return [name for name in before if name in shared] == [n for n in after if n in shared]


def _names(order: Sequence[str]) -> list[str]:
    """What `_items` will call what comes in this order."""
    halves: dict[str, str] = {}
    names = []
    for key in order:
        half = half_of(key)
        if half is None:
            names.append(key)
        elif halves.pop(half[0], None) is not None:
            names.append(half[0])
        else:
            halves[half[0]] = key
    return [*names, *halves.values()]


async def _items(stream: AsyncGenerator[tuple[str, Tensor]], scaling: float) -> Items:
    """The two factors of a module become its update once both are there."""
    halves: dict[str, tuple[str, Tensor]] = {}
    async with aclosing(stream):
        async for key, tensor in stream:
            half = half_of(key)
            if half is None:
                yield key, tensor
            elif half[0] not in halves:
                halves[half[0]] = key, tensor
            else:
                _, other = halves.pop(half[0])
                a, b = (tensor, other) if half[1] == "A" else (other, tensor)
                yield half[0], Update(a, b, scaling)
    for key, tensor in halves.values():
        yield key, tensor


async def _paired(
    before: Items, after: Items, old: set[str], new: set[str]
) -> AsyncGenerator[tuple[str, Item | None, Item | None]]:
    """What both have comes in one order, so each side waits only for what the other lacks."""
    one, other = await anext(before, None), await anext(after, None)
    while one is not None or other is not None:
        if one is not None and one[0] not in new:
            yield one[0], one[1], None
            one = await anext(before, None)
        elif other is not None and other[0] not in old:
            yield other[0], None, other[1]
            other = await anext(after, None)
        else:
            assert one is not None
            assert other is not None
            yield one[0], one[1], other[1]
            one, other = await anext(before, None), await anext(after, None)


def _compare(name: str, before: Item | None, after: Item | None) -> Moved:
    """A module's name is never a tensor's, so both sides are of one sort."""
    match (before, after):
        case (Update() | None as one, Update() | None as other) if one or other:
            return _module(name, one, other)
        case (Tensor() | None as one, Tensor() | None as other) if found := other or one:
            return Moved(name, found.shape, tensor_change(one, other), {})
    raise TypeError(f"{name} is a tensor in one version and a module in the other")


def _module(name: str, before: Update | None, after: Update | None) -> Moved:
    present = after or before
    assert present is not None
    factors = {
        "a": tensor_change(before.a if before else None, after.a if after else None),
        "b": tensor_change(before.b if before else None, after.b if after else None),
    }
    return Moved(name, present.shape, update_change(before, after), factors)
