"""What text may be stored: anything but what some loader would unpickle or unpack."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exporters.base import BadFile
from exporters.content import read_content
from exporters.text_pickle import is_text_pickle


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("echo PWNED",))


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Evil(), 0),
        pickle.dumps(Evil(), 0)[:-1],
        b"cos\nsystem\n(S'echo PWNED'\ntR!",
        b"(S'echo PWNED'\nios\nsystem\n!",
        b"I0x1F\n0cos\nsystem\n(S'echo PWNED'\ntR",  # pickle reads hexadecimals, pickletools none
        b"L1L\n." + pickle.dumps(Evil(), 0),  # torch reads one pickle after another
        b"(cos\nsystem\nS'echo PWNED'\no",
        "S'os'\nS'system'\nq\u0093(S'echo PWNED'\ntR".encode(),  # STACK_GLOBAL inside a letter
    ],
)
def test_a_text_that_runs_code_when_unpickled_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(data)
    with pytest.raises(BadFile, match=r"notes\.txt: is a pickle"):
        read_content(tmp_path / "notes.txt")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# A LoRA\n\ncheckpoint of facts (in short): trained on 10 samples.\n",
        "checkpoint\nnotes\nof a run\n",
        "(i hope\nso)\n",
        "#version: 0.2\n\u0120 t\n\u0120 a\nh e\n",
        "cat\ndog\nrabbit\n",
        "[PAD]\n[UNK]\n##ing\n",
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        '{"a": [1, 2.5, null]}',
    ],
)
def test_ordinary_text_is_admitted(text: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text(text)
    read_content(tmp_path / "notes.txt")


_WORDS = st.lists(st.from_regex(r"[A-Za-z]{1,12}[.,:;)]?", fullmatch=True), min_size=2)


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_WORDS.map(" ".join)).map("\n".join))
def test_no_prose_is_taken_for_a_pickle(text: str) -> None:
    assert not is_text_pickle(text.encode())


@pytest.mark.parametrize(
    "name", ["a.bin", "a.PT", "a.pth", "a.pkl", "a.npy", "a.h5", "a.msgpack", "a.tar.gz", "a.zip"]
)
def test_a_name_that_loaders_unpickle_is_refused_whatever_it_holds(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text("text")
    with pytest.raises(BadFile, match="pickled and packed files are never stored"):
        read_content(tmp_path / name)


@pytest.mark.parametrize("start", [b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b"])
def test_an_archive_is_refused_whatever_it_is_called(start: bytes, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(start + b"text")
    with pytest.raises(BadFile, match=r"notes\.txt: is a zip or gzip archive"):
        read_content(tmp_path / "notes.txt")


def test_what_a_file_says_is_told_in_text_that_can_be_stored() -> None:
    error = BadFile("a\0b.json", "\ud800 is the absolute path '/x' \x1b[0m")
    assert str(error) == r"a\x00b.json: \ud800 is the absolute path '/x' \x1b[0m"
