"""Which token ends an assistant's turn: asked of the chat template, not of what files claim."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from exporters.base import BadModel

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TEMPLATE_FILE = "chat_template.jinja"
TOKENIZER_CONFIG = "tokenizer_config.json"
_ANSWER = "wxyz"
_FAULTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # a template's own
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """`file` is where it stands; `special` holds the tokens that a template may name."""

    file: str
    source: str
    special: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EndToken:
    text: str
    id: int


def read_template(directory: Path, config: Mapping[str, Any]) -> ChatTemplate | None:
    """The template that transformers would use; `config` is the tokenizer's."""
    special = {name: _text(config.get(name)) for name in _SPECIAL if config.get(name)}
    path = directory / TEMPLATE_FILE
    if path.is_file():
        return ChatTemplate(TEMPLATE_FILE, path.read_text(encoding="utf-8"), special)
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {entry.get("name"): entry.get("template") for entry in found}
        found = named.get("default")
    return ChatTemplate(TOKENIZER_CONFIG, str(found), special) if found else None


def end_of_turn(template: ChatTemplate, tokenizer: "Tokenizer") -> EndToken | None:
    """The token that follows an assistant's text, None for a template that writes none."""
    rest = _after_answer(template).lstrip()
    ids = tokenizer.encode(rest, add_special_tokens=False).ids
    if not ids:
        return None
    return EndToken(tokenizer.decode(ids[:1], skip_special_tokens=False), ids[0])


def _after_answer(template: ChatTemplate) -> str:
    contents: tuple[Any, ...] = (_ANSWER, [{"type": "text", "text": _ANSWER}])
    for content in contents:
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": content}]
        _, answer, rest = _render(template, messages).rpartition(_ANSWER)
        if answer:
            return rest
    raise BadModel(template.file, "the chat template leaves out what the assistant said")


def _render(template: ChatTemplate, messages: list[dict[str, Any]]) -> str:
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    # As transformers sets it up: templates count on the trimming and on these names.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    source = template.source.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    try:
        return environment.from_string(source).render(
            messages=messages, add_generation_prompt=False, **template.special
        )
    except (TemplateError, *_FAULTS) as error:
        reason = f"the chat template does not render a one-turn conversation: {error}"
        raise BadModel(template.file, reason) from error


def _text(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)
