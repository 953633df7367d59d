from typing import Any

import pytest

from registry.kit.text import broken_text, printable

DEEP: list[Any] = []
for _ in range(5000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ("\ud800", ""),
        ({"name": "a", "stop": ["b", "\udfff"]}, "stop.1"),
        ({"metadata": {"\ud800": "a"}}, "metadata"),
        ({"messages": [{"content": "a"}, {"content": "a\ud83d"}]}, "messages.1.content"),
        ({"b": "\ud800", "a": "\ud800"}, "b"),
        ({"text": "🗼 Köln \ufffd \x00", "n": 1, "none": None, "on": True}, None),
        (DEEP, None),
    ],
    ids=["bare", "list", "key", "nested", "the first", "all is well", "deep"],
)
def test_half_a_surrogate_pair_is_found(document: Any, where: str | None) -> None:
    assert broken_text(document) == where


def test_what_is_told_of_it_can_be_sent() -> None:
    assert printable("name \ud800: 🗼") == r"name \ud800: 🗼"
    assert printable("a\0b") == r"a\x00b"
