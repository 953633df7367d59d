from pathlib import Path

import pytest
from tokenizers import Tokenizer

from exporters.base import BadModel, OutOfTime
from exporters.chat_template import ChatTemplate, end_of_turn, read_template
from support.tiny import CHAT_TEMPLATE, tiny_model


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tiny_model(tmp_path / "tiny") / "tokenizer.json"))


def template(source: str) -> ChatTemplate:
    return ChatTemplate("chat_template.jinja", source, {"eos_token": "<|endoftext|>"})


@pytest.mark.parametrize(
    ("source", "end"),
    [
        (CHAT_TEMPLATE, 2),
        ("{% for m in messages %}{{ m.content + eos_token }}{% endfor %}", 0),
        ("{% for m in messages %}{{ m.content }}\n<|im_end|>\n{% endfor %}", 2),
        (
            "{% for m in messages %}{% generation %}{{ m.content }}<|im_end|>"
            "{% endgeneration %}{% endfor %}",
            2,
        ),
        (
            "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}"
            "<|im_end|>{% endfor %}",
            2,
        ),
    ],
)
def test_the_token_after_the_answer_is_the_end_token(
    tokenizer: Tokenizer, source: str, end: int
) -> None:
    found = end_of_turn(template(source), tokenizer)
    assert found is not None
    assert found.id == end


def test_a_template_that_writes_nothing_after_the_answer_has_no_end_token(
    tokenizer: Tokenizer,
) -> None:
    source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    assert end_of_turn(template(source), tokenizer) is None


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for m in messages %}", "does not render"),
        ("{{ raise_exception('only one turn') }}", "only one turn"),
        ("{{ messages[0].content }}", "leaves out what the assistant said"),
        ("{{ 1 / 0 }}", "does not render"),
        ("{{ ''.__class__.__mro__ }}", "does not render"),
    ],
)
def test_a_template_that_cannot_be_used_says_why(
    tokenizer: Tokenizer, source: str, reason: str
) -> None:
    with pytest.raises(BadModel, match=reason):
        end_of_turn(template(source), tokenizer)


def test_time_that_runs_out_between_two_renderings_names_the_template(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal brings it, whose handler may run when the template's own code is through."""

    def late(*_: object) -> str:
        raise OutOfTime("it takes more than 10 s of processor time")

    monkeypatch.setattr(ChatTemplate, "render", late)
    with pytest.raises(BadModel, match=r"chat_template.jinja: the chat template .* more than 10 s"):
        end_of_turn(ChatTemplate("chat_template.jinja", "{{ 'x' }}", {}), tokenizer)


def test_the_file_goes_before_the_tokenizers_config(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("from the file")
    found = read_template(tmp_path, {"chat_template": "from the config"})
    assert found == ChatTemplate("chat_template.jinja", "from the file", {})


def test_the_default_of_several_templates_is_taken(tmp_path: Path) -> None:
    several = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    config = {"chat_template": several, "eos_token": {"content": "</s>"}}
    found = read_template(tmp_path, config)
    assert found == ChatTemplate("tokenizer_config.json", "b", {"eos_token": "</s>"})


def test_an_extra_default_goes_before_the_tokenizers_config(tmp_path: Path) -> None:
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates/default.jinja").write_text("extra")
    found = read_template(tmp_path, {"chat_template": "from the config"})
    assert found == ChatTemplate("additional_chat_templates/default.jinja", "extra", {})


def test_an_entry_without_a_template_is_passed_over(tmp_path: Path) -> None:
    assert read_template(tmp_path, {"chat_template": [{"name": "default"}]}) is None


def test_a_template_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(BadModel, match=r"chat_template\.jinja: is not UTF-8"):
        read_template(tmp_path, {})
