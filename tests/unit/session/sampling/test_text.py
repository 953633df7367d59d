import pytest
from tokenizers import Tokenizer

from session.sampling.text import Detokenizer, StopCutter
from support.tiny import END_ID, tiny_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_file(str(tiny_model(tmp_path_factory.mktemp("m")) / "tokenizer.json"))


def test_a_character_of_several_tokens_is_given_whole(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("ja 🗼 nö").ids
    detokenizer = Detokenizer(tokenizer)
    parts = [detokenizer.push([token]) for token in tokens]
    assert len(tokens) > len("ja 🗼 nö")
    assert not any("\ufffd" in part for part in parts)
    assert "".join(parts) + detokenizer.flush() == "ja 🗼 nö"


def test_bytes_that_never_become_a_character_are_shown_at_the_end(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(tokenizer.encode("a🗼").ids[:2]) == ""
    assert detokenizer.flush() == "a\ufffd"


def test_special_tokens_have_no_text(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    tokens = [*tokenizer.encode("The end").ids, END_ID]
    assert detokenizer.push(tokens) + detokenizer.flush() == "The end"


def test_text_is_cut_before_a_stop_string_that_comes_in_pieces() -> None:
    cutter = StopCutter(["\n\nQ:"])
    assert [cutter.push(part) for part in ("yes\n", "\nQ", ": no", "x")] == ["yes", "", "", ""]
    assert cutter.stopped


def test_text_that_only_began_like_a_stop_string_is_given() -> None:
    cutter = StopCutter(["END", "NEVER"])
    assert [cutter.push(part) for part in ("say EN", "EN", "jo")] == ["say ", "EN", "ENjo"]
    assert cutter.push("NEV") + cutter.flush() == "NEV"
    assert not cutter.stopped


def test_the_earliest_of_several_stop_strings_cuts() -> None:
    assert StopCutter(["b", "ab"]).push("xxab") == "xx"
