"""An object that comes in parts: how large they are, and which may be put together."""

from collections.abc import Sequence
from itertools import pairwise

from registry.artifacts.errors import InvalidArtifactName, PartsRefused
from registry.artifacts.store import Part

MIB = 2**20
SMALLEST_PART = 5 * MIB
"""S3's, of every part but the last."""
LARGEST_PART = 5 * 2**30
LAST_PART = 10_000
MOST_PARTS = 9_900
"""Fewer than S3 takes, so that none is ever one too many."""


def part_size(total: int, smallest: int) -> int:
    """Of a file of `total` bytes: a whole number of MiB, so large that the parts are few enough."""
    needed = -(-total // MOST_PARTS)
    chosen = max(smallest, SMALLEST_PART, -(-needed // MIB) * MIB)
    if chosen > LARGEST_PART:
        raise InvalidArtifactName(f"{total} bytes", "are more than one object can hold")
    return chosen


def require_part_number(key: str, number: int) -> None:
    if not 1 <= number <= LAST_PART:
        raise PartsRefused(key, f"part {number} is not one of 1 to {LAST_PART}")


def require_some(key: str, wanted: Sequence[Part]) -> None:
    if not wanted:
        raise PartsRefused(key, "no part is named")


def require_whole(key: str, wanted: Sequence[Part], held: Sequence[Part]) -> None:
    """What S3 demands of the list that ends an upload, for the stores that are not S3."""
    require_some(key, wanted)
    tags = {part.number: part.etag for part in held}
    sizes = {part.number: part.size for part in held}
    for before, after in pairwise(wanted):
        if before.number >= after.number:
            raise PartsRefused(key, f"part {after.number} comes after part {before.number}")
    for part in wanted:
        if tags.get(part.number) != part.etag:
            raise PartsRefused(key, f"part {part.number} is not there, or is another by now")
    for part in wanted[:-1]:
        if sizes[part.number] < SMALLEST_PART:
            raise PartsRefused(key, f"part {part.number} has fewer than {SMALLEST_PART} bytes")
