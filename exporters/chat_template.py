"""A model's chat templates: reading them, rendering with them, and which token ends a turn.

A chat template is code from a model's directory: it runs in Jinja's sandbox. What comes out is the
same, character for character, as transformers' `apply_chat_template`, and a test keeps it so.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from exporters.base import BadModel, OutOfTime, read_json
from exporters.companions import EXTRA_TEMPLATES

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]]

TEMPLATE_FILE = "chat_template.jinja"
TOKENIZER_CONFIG = "tokenizer_config.json"
_DEFAULT = "default"
_SPECIAL_FILE = "special_tokens_map.json"
_SPECIAL = frozenset(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_ANSWER = "wxyz"
_LONGEST_TURN = 1_000_000  # characters; real ones write a few thousand
_LONGEST_END = 1_000  # characters; the first token is wanted


class TemplateFailed(Exception):
    """The template turned the messages down, in its own words, or cannot be rendered with them."""


@dataclass(frozen=True)
class ChatTemplate:
    """`file` is where it stands; `special` holds the tokens that a template may name."""

    file: str
    source: str
    special: Mapping[str, str]

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        add_generation_prompt: bool = False,
    ) -> str:
        try:
            return self._compiled.render(
                **self.special,
                messages=list(messages),
                tools=list(tools) if tools else None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except Exception as error:  # a template is code, and fails in any way there is
            raise _failed(error) from error

    @cached_property
    def takes_tools(self) -> bool:
        try:
            return "tools" in meta.find_undeclared_variables(_JINJA.parse(self.source))
        except Exception as error:  # nested too deeply, for one
            raise _failed(error) from error

    @cached_property
    def _compiled(self) -> Template:
        return _JINJA.from_string(self.source)


@dataclass(frozen=True, slots=True)
class EndToken:
    text: str
    id: int


def read_tokenizer_config(directory: Path) -> dict[str, Any]:
    return _read_optional(directory, TOKENIZER_CONFIG)


def read_templates(directory: Path, config: Mapping[str, Any]) -> dict[str, ChatTemplate]:
    """By name; files go before what `config`, the tokenizer's, holds."""
    special = _special_tokens(directory, config)
    extra = sorted((directory / EXTRA_TEMPLATES).glob("*.jinja"))
    files = {path.stem: f"{EXTRA_TEMPLATES}/{path.name}" for path in extra}
    if (directory / TEMPLATE_FILE).is_file():
        files[_DEFAULT] = TEMPLATE_FILE
    if files:
        return {
            name: ChatTemplate(file, _read_text(directory, file), special)
            for name, file in files.items()
        }
    return {
        name: ChatTemplate(TOKENIZER_CONFIG, source, special)
        for name, source in _configured(config).items()
        if source
    }


def read_template(directory: Path, config: Mapping[str, Any]) -> ChatTemplate | None:
    """The one that transformers would use without tools."""
    return read_templates(directory, config).get(_DEFAULT)


def end_of_turn(template: ChatTemplate, tokenizer: "Tokenizer") -> EndToken | None:
    """The token that follows an assistant's text, None for a template that writes none.

    Asked of the template, since a model's files may claim another.
    """
    try:
        rest = _after_answer(template).lstrip()[:_LONGEST_END]
    except OutOfTime as error:  # while nothing of the template ran, but because of what had
        raise BadModel(template.file, f"the chat template cannot be checked: {error}") from None
    ids = tokenizer.encode(rest, add_special_tokens=False).ids
    if not ids:
        return None
    return EndToken(tokenizer.decode(ids[:1], skip_special_tokens=False), ids[0])


def _configured(config: Mapping[str, Any]) -> dict[str, str]:
    match config.get("chat_template"):
        case str(source):
            return {_DEFAULT: source}
        case list(templates):
            named = [each for each in templates if isinstance(each, dict)]
            complete = [each for each in named if {"name", "template"} <= each.keys()]
            if not all(isinstance(v, str) for e in complete for v in (e["name"], e["template"])):
                reason = "chat_template has a name or a template that is not a text"
                raise BadModel(TOKENIZER_CONFIG, reason)
            return {each["name"]: each["template"] for each in complete}
        case _:
            return {}


def _special_tokens(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and the like by name. In older directories the side file has the last word."""
    is_older = "added_tokens_decoder" not in config
    named = {**config, **(_read_optional(directory, _SPECIAL_FILE) if is_older else {})}
    found = {key: named[key] for key in _SPECIAL & named.keys() if named[key] is not None}
    return {
        key: str(token.get("content", "") if isinstance(token, dict) else token)
        for key, token in found.items()
    }


def _read_text(directory: Path, name: str) -> str:
    try:
        return (directory / name).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadModel(name, "is not UTF-8 text") from error


def _read_optional(directory: Path, name: str) -> dict[str, Any]:
    return read_json(directory, name) if (directory / name).is_file() else {}


def _failed(error: Exception) -> TemplateFailed:
    return TemplateFailed(str(error) or type(error).__name__)


def _after_answer(template: ChatTemplate) -> str:
    contents: tuple[Any, ...] = (_ANSWER, [{"type": "text", "text": _ANSWER}])
    for content in contents:
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": content}]
        try:
            rendered = template.render(messages)
        except TemplateFailed as error:
            reason = f"the chat template does not render a one-turn conversation: {error}"
            raise BadModel(template.file, reason) from error
        if len(rendered) > _LONGEST_TURN:
            reason = (
                f"the chat template makes {len(rendered):,} characters of a one-turn conversation"
            )
            raise BadModel(template.file, reason)
        _, answer, rest = rendered.rpartition(_ANSWER)
        if answer:
            return rest
    raise BadModel(template.file, "the chat template leaves out what the assistant said")


class _Generation(Extension):
    """`{% generation %}` marks what a model said, for training masks; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - the shape of jinja2's own class

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        said: str = caller()
        return said


class _Namespace(Namespace):
    """A template's variables; names that begin with an underscore would reach into Python."""

    def __init__(self, *given: Any, **values: Any) -> None:
        held = dict(*given, **values)
        for name in held:
            _refuse_private(name)
        super().__init__(held)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}")


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)  # local time, as transformers has it


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own filter this leaves HTML characters alone."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": _now,
        "namespace": _Namespace,
    }
    return environment


_JINJA = _environment()
