"""A chat as the tokens a model was trained on, without transformers, which would bring in torch.

A chat template is code from a model's directory: it runs in Jinja's sandbox. What comes out is the
same, character for character, as transformers' `apply_chat_template`, and a test keeps it so.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from registry.kit.errors import Kind, ServiceError

Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]]

_NAMED_TOKENS = frozenset(
    f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)


class NoChatTemplate(ServiceError):
    kind = Kind.invalid

    def __init__(self) -> None:
        super().__init__("this model has no chat template: send a plain prompt to completions")


class ChatRefused(ServiceError):
    """The template itself turned the messages down, or cannot be rendered with them."""

    kind = Kind.invalid

    def __init__(self, reason: str) -> None:
        super().__init__(f"messages: the model's chat template refuses them: {reason}")


class ToolsUnknown(ServiceError):
    kind = Kind.invalid

    def __init__(self) -> None:
        super().__init__("tools: this model's chat template has no place for tools")


class ChatTokenizer:
    """The tokenizer and chat template of one model directory."""

    def __init__(self, directory: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self._config = _json(directory / "tokenizer_config.json")
        self._special = _special_tokens(self._config, directory)
        self._sources = _templates(self._config, directory)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Tokens that have no text."""
        added = self.tokenizer.get_added_tokens_decoder()
        return frozenset(id_ for id_, token in added.items() if token.special)

    def token_text(self, token: int) -> str:
        """One token by itself: part of a character shows as U+FFFD."""
        text: str = self.tokenizer.decode([token], skip_special_tokens=False)
        return text

    def encode_chat(self, messages: Sequence[Message], *, tools: Tools | None = None) -> list[int]:
        """The prompt for the assistant's next turn."""
        text = self.render(messages, tools=tools, add_generation_prompt=True)
        return self.encode(text)  # the template has written the special tokens itself

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        add_generation_prompt: bool = False,
    ) -> str:
        """Raises ChatRefused with the template's own words where it turns the messages down."""
        given = [{k: v for k, v in message.items() if v is not None} for message in messages]
        template = self._template("tool_use" if tools else "default", with_tools=bool(tools))
        try:
            return template.render(
                **self._special,
                messages=given,
                tools=list(tools) if tools else None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise ChatRefused(str(error)) from error

    def _template(self, name: str, *, with_tools: bool) -> jinja2.Template:
        source = self._sources.get(name) or self._sources.get("default")
        if source is None:
            raise NoChatTemplate
        if with_tools and "tools" not in meta.find_undeclared_variables(_JINJA.parse(source)):
            raise ToolsUnknown
        return self._compiled.setdefault(source, _JINJA.from_string(source))

    @cached_property
    def _compiled(self) -> dict[str, jinja2.Template]:
        return {}


def chat_tokenizer(directory: Path) -> ChatTokenizer:
    """Read once for as long as the files are the same; reading a large one takes a moment."""
    return _read(directory, (directory / "tokenizer.json").stat().st_mtime_ns)


@lru_cache(maxsize=16)
def _read(directory: Path, _: int) -> ChatTokenizer:
    return ChatTokenizer(directory)


def _json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def _special_tokens(config: Mapping[str, Any], directory: Path) -> dict[str, str]:
    """`bos_token` and the like by name. In older directories the side file has the last word."""
    is_older = "added_tokens_decoder" not in config
    named = {**config, **(_json(directory / "special_tokens_map.json") if is_older else {})}
    found = {key: named[key] for key in _NAMED_TOKENS & named.keys() if named[key] is not None}
    return {
        key: value["content"] if isinstance(value, dict) else value for key, value in found.items()
    }


def _templates(config: Mapping[str, Any], directory: Path) -> dict[str, str]:
    """By name; `chat_template.jinja` wins over what the tokenizer's configuration holds."""
    file = directory / "chat_template.jinja"
    named = {
        path.stem: path.read_text("utf-8")
        for path in sorted((directory / "additional_chat_templates").glob("*.jinja"))
    }
    if file.exists():
        return named | {"default": file.read_text("utf-8")}
    if named:
        return named
    match config.get("chat_template"):
        case str(source):
            return {"default": source}
        case list(templates):
            return {each["name"]: each["template"] for each in templates}
        case _:
            return {}


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


class _Namespace(jinja2.utils.Namespace):
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
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold {name!r}")


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


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
