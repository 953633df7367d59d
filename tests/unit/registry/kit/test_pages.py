import base64

import pytest

from registry.kit.pages import BadCursor, Cursors

CURSORS = Cursors((str, int), ("things", "red"))


def test_a_cursor_leads_back_to_its_position() -> None:
    assert CURSORS.read(CURSORS.write(("name", 7))) == ("name", 7)


def test_no_cursor_is_the_start() -> None:
    assert CURSORS.read(None) is None


def test_a_page_that_has_more_says_so() -> None:
    page = CURSORS.page([1, 2, 3], 2, lambda row: ("row", row))
    assert page.items == [1, 2]
    assert CURSORS.read(page.next_cursor) == ("row", 2)


def test_the_last_page_has_no_cursor() -> None:
    assert CURSORS.page([1, 2], 2, lambda row: ("row", row)).next_cursor is None


@pytest.mark.parametrize(
    "cursor",
    ["", "%", "ü", "AAAA", base64.urlsafe_b64encode(b"[" * 1000).decode(), "bnVsbA", "MQ", "a"],
)
def test_a_made_up_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(BadCursor):
        CURSORS.read(cursor)


def test_a_cursor_of_other_filters_is_refused() -> None:
    blue = Cursors(CURSORS.form, ("things", "blue"))
    with pytest.raises(BadCursor):
        CURSORS.read(blue.write(("name", 7)))


@pytest.mark.parametrize("position", [("name",), ("name", "7"), (7, 7), ("a\0", 7), ("a", 2**63)])
def test_a_position_that_no_database_takes_is_refused(position: tuple[str | int, ...]) -> None:
    with pytest.raises(BadCursor):
        CURSORS.read(CURSORS.write(position))
