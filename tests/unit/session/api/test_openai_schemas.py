"""A field that would change the answer is honoured or refused by name; never ignored."""

from typing import Any

import pytest
from pydantic import ValidationError

from session.api.openai_errors import InvalidRequest
from session.api.openai_schemas import ChatMessage, ChatRequest, TextRequest

HI = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("response_format", {"type": "json_object"}),
        ("frequency_penalty", 0.5),
        ("logit_bias", {"5": 100}),
        ("top_logprobs", 2),
        ("reasoning_effort", "high"),
        ("modalities", ["audio"]),
        ("functions", [{}]),
        ("top_k", 3),
        ("no_such_thing", 1),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"^{name}: ") as caught:
        ChatRequest.model_validate({**HI, name: value})
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"messages": [{"role": "user", "content": "a\ud800"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "name": "\udc00", "content": ""}]}, "messages.0.name"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}]},
            "messages.0.content.0.text",
        ),
        ({"stop": ["a", "\ud800"]}, "stop.1"),
        ({"tools": [{"function": {"name": "\ud800"}}]}, "tools.0.function.name"),
        ({"model": "\ud800"}, "model"),
        ({"\ud800": 1}, "body"),
    ],
)
def test_half_a_surrogate_pair_is_refused_by_name(given: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest, match="not Unicode") as caught:
        ChatRequest.model_validate({**HI, **given})
    assert caught.value.param == param


def test_a_prompt_and_the_arguments_of_a_call_are_unicode() -> None:
    with pytest.raises(InvalidRequest, match=r"^prompt: .*not Unicode"):
        TextRequest.model_validate({"model": "m", "prompt": "\ud800"})
    call = {"id": "c", "function": {"name": "f", "arguments": r'{"a": "\ud800"}'}}
    with pytest.raises(ValidationError, match="not Unicode"):
        ChatMessage.model_validate({"role": "assistant", "tool_calls": [call]})


@pytest.mark.parametrize(
    "given",
    [
        {"response_format": {"type": "text"}, "top_logprobs": 0, "modalities": ["text"]},
        {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": None},
        {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
    ],
    ids=["asks for nothing new", "neutral numbers", "their own house"],
)
def test_what_changes_nothing_is_taken(given: dict[str, Any]) -> None:
    dumped = ChatRequest.model_validate({**HI, **given}).model_dump(exclude_none=True)
    assert dumped.keys() == {"model", "messages"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 2.5),
        ("top_p", 0),
        ("n", 0),
        ("max_tokens", 0),
        ("stop", ""),
        ("stop", ["a"] * 17),
        ("tool_choice", "required"),
        ("messages", []),
        ("messages", [{"role": "user"}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate({**HI, name: value})
    assert caught.value.errors()[0]["loc"][0] == name


def test_parts_of_text_become_one() -> None:
    parts = [{"type": "text", "text": "Hello "}, {"type": "text", "text": "you"}]
    assert ChatMessage.model_validate({"role": "user", "content": parts}).content == "Hello you"


def test_a_developer_speaks_as_the_system() -> None:
    message = ChatMessage.model_validate({"role": "developer", "content": "Be brief."})
    assert message.for_template() == {"role": "system", "content": "Be brief."}


def test_arguments_of_a_call_reach_the_template_as_an_object() -> None:
    call = {"id": "c1", "function": {"name": "weather", "arguments": '{"town": "Köln"}'}}
    message = ChatMessage.model_validate({"role": "assistant", "tool_calls": [call]})
    [given] = message.for_template()["tool_calls"]
    assert given["function"] == {"name": "weather", "arguments": {"town": "Köln"}}


@pytest.mark.parametrize("prompt", ["hi", ["hi"], [1, 2], [[1, 2]]])
def test_one_prompt_in_any_of_its_forms(prompt: Any) -> None:
    expected = "hi" if "hi" in prompt else [1, 2]
    assert TextRequest.model_validate({"model": "m", "prompt": prompt}).prompt == expected


@pytest.mark.parametrize(
    "given", [{"prompt": ["a", "b"]}, {"prompt": [-1]}, {"prompt": "a", "logprobs": 1}]
)
def test_several_prompts_and_alternatives_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TextRequest.model_validate({"model": "m", **given})


def test_best_of_may_only_repeat_n() -> None:
    with pytest.raises(InvalidRequest, match="best_of"):
        TextRequest.model_validate({"model": "m", "prompt": "a", "best_of": 3})
