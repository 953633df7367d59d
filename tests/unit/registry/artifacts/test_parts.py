import pytest

from registry.artifacts.errors import InvalidArtifactName
from registry.artifacts.parts import LARGEST_PART, MIB, MOST_PARTS, SMALLEST_PART, part_size


@pytest.mark.parametrize("total", [0, 1, 8 * MIB, 2**30, 100 * 10**9, 5 * 2**40 - 1, 5 * 2**40])
@pytest.mark.parametrize("smallest", [1, 8 * MIB, 64 * MIB])
def test_there_are_never_more_parts_than_s3_takes(total: int, smallest: int) -> None:
    part = part_size(total, smallest)
    assert max(smallest, SMALLEST_PART) <= part <= LARGEST_PART
    assert part % MIB == 0
    assert -(-total // part) <= MOST_PARTS


def test_a_part_grows_only_where_it_must() -> None:
    assert part_size(8 * MIB * MOST_PARTS, 8 * MIB) == 8 * MIB
    assert part_size(8 * MIB * MOST_PARTS + 1, 8 * MIB) == 9 * MIB


def test_what_no_object_can_hold_is_refused() -> None:
    with pytest.raises(InvalidArtifactName):
        part_size(LARGEST_PART * MOST_PARTS + 1, 8 * MIB)
