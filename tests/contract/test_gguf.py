"""A GGUF file becomes a model directory that plain transformers loads and that stops talking."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from exporters.gguf import convert
from exporters.hf_model import inspect
from support.gguf_file import pack
from support.tiny import CHAT_TEMPLATE, CONTEXT, END, END_ID, tiny_model

WRONG_END = 0


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "base")


@pytest.fixture
def converted(base: Path, tmp_path: Path) -> Path:
    gguf = pack(base, tmp_path / "tiny.gguf", end_id=WRONG_END)
    convert(gguf, tmp_path / "converted")
    return tmp_path / "converted"


def load(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path)


def test_the_weights_are_those_of_the_file_in_bfloat16(base: Path, converted: Path) -> None:
    expected, found = load(base).state_dict(), load(converted).state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name].bfloat16(), found[name]) for name in expected)


def test_the_model_ends_where_its_chat_template_ends(converted: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(converted)
    assert inspect(converted).end_ids == (END_ID,)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == (END, END_ID)
    assert (tokenizer.pad_token_id, tokenizer.model_max_length) == (END_ID, CONTEXT)
    assert tokenizer.decode([END_ID], skip_special_tokens=True) == ""
    for name in ("config.json", "generation_config.json"):
        values = json.loads((converted / name).read_text())
        assert (values["eos_token_id"], values["pad_token_id"]) == (END_ID, END_ID)


def test_the_tokenizer_reads_text_as_before(base: Path, converted: Path) -> None:
    before, after = (AutoTokenizer.from_pretrained(path) for path in (base, converted))
    text = "<|im_start|>user\nWhat is 12 + 34?\n\n  Hé!<|im_end|>\n"
    assert after.encode(text) == before.encode(text)
    assert after.chat_template == CHAT_TEMPLATE


def test_nothing_shows_where_the_weights_were_packed(converted: Path) -> None:
    text = (converted / "config.json").read_text() + (
        converted / "tokenizer_config.json"
    ).read_text()
    assert "gguf" not in text.lower()


def test_nothing_is_left_of_a_conversion_that_failed(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF, but no more")
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the library raises
        convert(tmp_path / "bad.gguf", tmp_path / "converted")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.gguf"]


def test_a_conversion_is_silent(
    base: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    convert(pack(base, tmp_path / "tiny.gguf", end_id=END_ID), tmp_path / "converted")
    assert capfd.readouterr() == ("", "")
