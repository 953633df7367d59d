"""Files of strangers are looked at in a process of its own, which ends at its limits."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from exporters import confined
from exporters.base import BadFile
from support.model_files import change_json, random_adapter
from support.tiny import tiny_model

HF = Path("checkpoints/hf")
TEMPLATE = "{% for m in messages %}{{ m['content'] }}</s>{% endfor %}"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "base")


@pytest.fixture
def folder(base: Path, tmp_path: Path) -> Path:
    """A version as an upload has it."""
    adapter = random_adapter(base, tmp_path / "adapter", targets=("q_proj", "lm_head"))
    shutil.copytree(adapter, tmp_path / "folder" / HF)
    return tmp_path / "folder"


def check(folder: Path, base: Path) -> dict[str, Any]:
    said = confined.examine(folder, "adapter")
    confined.fit(folder, "adapter", base)
    return said


def test_an_adapter_says_its_lora(folder: Path, base: Path) -> None:
    said = check(folder, base)
    assert said["lora"]["targets"] == ["q_proj", "lm_head"]
    assert (said["step"], said["whole"]) == (0, [])


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'x' * 700000000 }}",
        "{{ 10 ** 10 ** 10 }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ '%0999999999d' % 1 }}",
    ],
)
def test_a_template_that_never_ends_or_takes_everything_is_refused(
    folder: Path, base: Path, template: str
) -> None:
    (folder / HF / "chat_template.jinja").write_text(template)
    with pytest.raises(BadFile, match=r"chat.template"):
        check(folder, base)


def test_a_template_whose_name_is_no_text_is_refused(folder: Path) -> None:
    change_json(folder / HF / "tokenizer_config.json", chat_template=[{"name": [], "template": ""}])
    (folder / HF / "chat_template.jinja").unlink(missing_ok=True)
    with pytest.raises(BadFile, match=r"tokenizer_config\.json: chat_template has a name"):
        confined.examine(folder, "adapter")


@pytest.mark.parametrize("document", [{"\ud800": "/abs/x"}, {"a\0b": "/etc/x"}])
def test_a_key_that_is_no_text_is_written_out(folder: Path, document: dict[str, str]) -> None:
    (folder / HF / "generation_config.json").write_text(json.dumps(document))
    with pytest.raises(BadFile) as caught:
        confined.examine(folder, "adapter")
    assert "is the absolute path '/" in caught.value.reason
    assert caught.value.reason.isprintable()


def test_a_hidden_file_is_looked_at_too(folder: Path) -> None:
    (folder / HF / ".x").mkdir()
    (folder / HF / ".x" / "evil").write_bytes(b"\x80\x04.")
    with pytest.raises(BadFile, match=r"checkpoints/hf/\.x/evil: is neither"):
        confined.examine(folder, "adapter")
