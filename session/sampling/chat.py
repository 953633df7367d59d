"""A chat as the tokens a model was trained on, without transformers, which would bring in torch."""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from exporters.chat_template import (
    ChatTemplate,
    Message,
    TemplateFailed,
    Tools,
    read_templates,
    read_tokenizer_config,
)
from registry.kit.errors import Kind, ServiceError


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
        self._templates = read_templates(directory, read_tokenizer_config(directory))

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
        try:
            return self._template(tools).render(
                given, tools=tools, add_generation_prompt=add_generation_prompt
            )
        except TemplateFailed as error:
            raise ChatRefused(str(error)) from error

    def _template(self, tools: Tools | None) -> ChatTemplate:
        template = self._templates.get("tool_use") if tools else None
        template = template or self._templates.get("default")
        if template is None:
            raise NoChatTemplate
        if tools and not template.takes_tools:
            raise ToolsUnknown
        return template


def chat_tokenizer(directory: Path) -> ChatTokenizer:
    """Read once for as long as the files are the same; reading a large one takes a moment."""
    return _read(directory, (directory / "tokenizer.json").stat().st_mtime_ns)


@lru_cache(maxsize=16)
def _read(directory: Path, _: int) -> ChatTokenizer:
    return ChatTokenizer(directory)
