from typing import Any

import pytest

from session.client import checks
from session.client.errors import InvalidInput

HALF = "\ud800"  # of a surrogate pair: no encoding carries it


@pytest.mark.parametrize(
    ("refused", "field"),
    [
        (lambda: checks.text("name", HALF), "^name must"),
        (lambda: checks.names("targets", ["a", HALF]), r"^targets\[1\] must"),
        (lambda: checks.texts("metadata", {"a": HALF}), r"^metadata\['a'\] must"),
        (lambda: checks.texts("metadata", {HALF: "a"}), "^a key of metadata must"),
        (lambda: checks.numbers("metrics", {HALF: 1.0}), "^a key of metrics must"),
    ],
)
def test_text_that_is_not_unicode_names_its_field(refused: Any, field: str) -> None:
    with pytest.raises(InvalidInput, match=f"{field} be Unicode text") as caught:
        refused()
    assert str(caught.value).isascii()


@pytest.mark.parametrize("value", [10**400, -(10**5000)], ids=["400", "5000"])
def test_a_number_beyond_any_float_names_its_field(value: int) -> None:
    with pytest.raises(InvalidInput, match=r"metrics\['a'\] must be .* range of a float"):
        checks.numbers("metrics", {"a": value})


@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1])
def test_every_whole_number_of_64_bits_is_taken(value: int) -> None:
    assert checks.whole("seed", value) == value
