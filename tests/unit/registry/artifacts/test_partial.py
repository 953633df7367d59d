from pathlib import Path

import pytest

from registry.artifacts.partial import Partial, open_partial

DATA = b"0123456789"
WHOLE = [(0, 4), (4, 8), (8, 10)]


def fetch(partial: Partial, *, until: int = 10) -> None:
    for start, end in partial.missing:
        if start < until:
            partial.write(DATA[start:end], start)
            partial.done((start, end))
    partial.is_whole = not partial.missing


def leave(target: Path, *, mark: str = "etag", until: int) -> None:
    with open_partial(target, mark=mark, size=10, step=4) as partial:
        fetch(partial, until=until)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_another_try_fetches_only_the_rest(tmp_path: Path) -> None:
    leave(tmp_path / "a", until=5)
    assert names(tmp_path) == [".a.partial", ".a.partial.json"]
    with open_partial(tmp_path / "a", mark="etag", size=10, step=4) as partial:
        assert partial.missing == [(8, 10)]
        fetch(partial)
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == DATA


@pytest.mark.parametrize("change", [{"mark": "other"}, {"size": 11}, {"step": 5}])
def test_half_of_another_object_is_begun_anew(tmp_path: Path, change: dict[str, object]) -> None:
    leave(tmp_path / "a", until=5)
    given = {"mark": "etag", "size": 10, "step": 4, **change}
    with open_partial(tmp_path / "a", **given) as partial:  # type: ignore[arg-type]  # a table
        assert partial.missing == partial.spans


def test_a_note_alone_vouches_for_nothing(tmp_path: Path) -> None:
    leave(tmp_path / "a", until=5)
    (tmp_path / ".a.partial").unlink()
    with open_partial(tmp_path / "a", mark="etag", size=10, step=4) as partial:
        assert partial.missing == WHOLE


def test_a_line_that_was_cut_is_no_range(tmp_path: Path) -> None:
    leave(tmp_path / "a", until=5)
    note = tmp_path / ".a.partial.json"
    note.write_text(note.read_text().removesuffix(".\n"))
    with open_partial(tmp_path / "a", mark="etag", size=10, step=4) as partial:
        assert partial.missing == [(4, 8), (8, 10)]


def test_a_try_that_got_nothing_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cut"), open_partial(tmp_path / "a", mark="", size=9, step=4):
        raise OSError("cut")
    assert names(tmp_path) == []


def test_two_at_one_place_do_not_hurt_each_other(tmp_path: Path) -> None:
    with (
        open_partial(tmp_path / "a", mark="etag", size=10, step=4) as one,
        open_partial(tmp_path / "a", mark="etag", size=10, step=4) as two,
    ):
        fetch(one, until=5)
        assert two.missing == WHOLE
        fetch(two, until=5)
        fetch(one)
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == DATA


def test_a_name_as_long_as_a_file_system_takes_is_no_trouble(tmp_path: Path) -> None:
    target = tmp_path / ("ü" * 127)
    leave(target, until=5)
    leave(target, until=10)
    assert target.read_bytes() == DATA


def test_an_empty_file_is_whole_at_once(tmp_path: Path) -> None:
    with open_partial(tmp_path / "a", mark="etag", size=0, step=4) as partial:
        assert partial.missing == []
        partial.is_whole = True
    assert (tmp_path / "a").read_bytes() == b""
