"""The requests of OpenAI's chat completions and completions, as far as we can keep them.

A field that would change the answer and that we cannot honour is refused by name. One that only
concerns OpenAI's own house (billing tags, caching hints) is taken and dropped.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from registry.kit.text import NOT_UNICODE, broken_text
from session.api.openai_errors import InvalidRequest

_DROPPED = frozenset(
    (
        "metadata",
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    )
)
# Each with the values that ask for nothing.
_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": (),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "top_logprobs": (0,),
    "verbosity": (),
    "web_search_options": (),
}

Stop = Annotated[str, Field(min_length=1)]


class StreamOptions(BaseModel):
    """`continuous_usage_stats` puts the running totals on every chunk; a proxy can then meter a
    stream that is cut."""

    include_usage: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: bool = False


class Completion(BaseModel):
    """What both kinds of requests share."""

    model_config = ConfigDict(extra="forbid")

    model: str
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    n: int | None = Field(None, ge=1, le=128)
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        broken = broken_text(data)
        if broken is not None:
            raise InvalidRequest(broken or "body", NOT_UNICODE)
        for name in _UNSUPPORTED.keys() & data.keys():
            if data[name] is not None and data[name] not in _UNSUPPORTED[name]:
                raise InvalidRequest(name, "this is not supported")
        ignored = _DROPPED | _UNSUPPORTED.keys()
        kept = {name: value for name, value in data.items() if name not in ignored}
        for name in kept.keys() - cls.model_fields.keys():
            raise InvalidRequest(name, "there is no such field")
        return kept

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def length_param(self) -> str:
        return "max_tokens"

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class Function(BaseModel):
    name: str
    arguments: str

    @field_validator("arguments")
    @classmethod
    def _an_object(cls, text: str) -> str:
        document = json.loads(text)
        if not isinstance(document, dict):
            raise ValueError("not a JSON object")
        if broken_text(document) is not None:
            raise ValueError(NOT_UNICODE)
        return text


class ToolCall(BaseModel):
    id: str
    type: Literal["function"] = "function"
    function: Function

    def for_template(self) -> dict[str, Any]:
        """Templates write the arguments themselves, so they get them as an object."""
        arguments = json.loads(self.function.arguments)
        call = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": self.type, "function": call}


class ChatMessage(BaseModel):
    """Fields of an answer that is sent back, as `refusal` or `annotations`, are ignored."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _text_of_parts(cls, content: Any) -> Any:
        if not isinstance(content, list):
            return content
        parts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"]
        if len(parts) < len(content):
            raise ValueError("only parts of type text are supported")
        return "".join(str(part.get("text", "")) for part in parts)

    @model_validator(mode="after")
    def _says_something(self) -> "ChatMessage":
        if self.content is None and not self.tool_calls:
            raise ValueError("content is missing")
        return self

    def for_template(self) -> dict[str, Any]:
        said = self.model_dump(exclude_none=True)
        said["role"] = "system" if self.role == "developer" else self.role
        if self.tool_calls:
            said["tool_calls"] = [call.for_template() for call in self.tool_calls]
        return said


class ChatRequest(Completion):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"model": "workshop", "messages": [{"role": "user", "content": "When is it open?"}]}
            ]
        }
    )

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None

    @field_validator("tool_choice")
    @classmethod
    def _free(cls, choice: Any) -> Any:
        if choice not in (None, "auto", "none"):
            raise ValueError("a call of a tool cannot be forced: use 'auto' or 'none'")
        return choice

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def length_param(self) -> str:
        return "max_completion_tokens" if self.max_completion_tokens else "max_tokens"

    @property
    def offered_tools(self) -> list[dict[str, Any]] | None:
        return None if self.tool_choice == "none" else self.tools


class TextRequest(Completion):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": "workshop", "prompt": "The yard opens at", "max_tokens": 16}]
        }
    )

    prompt: str | list[Annotated[int, Field(ge=0, lt=2**31)]]
    best_of: int | None = None
    logprobs: int | None = Field(None, ge=0)

    @field_validator("prompt", mode="before")
    @classmethod
    def _only_one(cls, prompt: Any) -> Any:
        if isinstance(prompt, list) and any(isinstance(part, (str, list)) for part in prompt):
            if len(prompt) > 1:
                raise ValueError("one prompt a request")
            return prompt[0]
        return prompt

    @field_validator("logprobs")
    @classmethod
    def _no_alternatives(cls, logprobs: int | None) -> int | None:
        if logprobs:
            raise ValueError("only the tokens that were sampled are scored: use 0")
        return logprobs

    @model_validator(mode="after")
    def _no_choosing(self) -> "TextRequest":
        if self.best_of not in (None, self.n or 1):
            raise InvalidRequest("best_of", "only the same number as n is supported")
        return self
