"""What a collection found."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Heap:
    """Objects of one kind, in so many places."""

    places: int = 0
    objects: int = 0
    bytes: int = 0

    def add(self, sizes: Sequence[int], *, places: int = 1) -> None:
        self.places += places
        self.objects += len(sizes)
        self.bytes += sum(sizes)


@dataclass(frozen=True, slots=True)
class Damage:
    """A file of a listed version that is not there, or not whole."""

    ref: str
    account_id: str
    path: str
    problem: str


@dataclass(slots=True)
class Report:
    """`garbage` is what was deleted, or in a dry run would be, by kind."""

    is_dry_run: bool
    garbage: dict[str, Heap] = field(default_factory=dict)
    foreign: Heap = field(default_factory=Heap)
    damaged: list[Damage] = field(default_factory=list)

    @property
    def bytes_freed(self) -> int:
        return sum(heap.bytes for heap in self.garbage.values())

    def heap(self, kind: str) -> Heap:
        return self.garbage.setdefault(kind, Heap())
