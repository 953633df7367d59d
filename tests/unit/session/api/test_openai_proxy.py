"""What a serving process says it has used, and what it sent, is what is metered: once."""

from typing import Any

import pytest

from registry.usage.model import Category
from session.api.openai_proxy import Meter

PART: dict[str, Any] = {"choices": [{"delta": {"content": "a"}}]}


def usage(sampled: int, *choices: Any) -> dict[str, Any]:
    return {"choices": choices, "usage": {"prompt_tokens": 3, "completion_tokens": sampled}}


@pytest.mark.parametrize(
    ("payloads", "prompt", "sampled"),
    [
        ([PART] * 4, 0, 4),
        ([PART] * 7, 0, 7),
        ([PART, PART, usage(5)], 3, 5),
        ([PART, usage(2), usage(2)], 3, 2),
        ([usage(1, PART["choices"][0]), usage(2, PART["choices"][0])], 3, 2),
        ([], 0, 0),
    ],
    ids=["no usage", "cut", "usage last", "usage twice", "running totals", "nothing"],
)
def test_tokens_are_counted_once(payloads: list[Any], prompt: int, sampled: int) -> None:
    meter = Meter()
    for payload in payloads:
        meter.see(payload)
    assert meter.counts == {Category.prefill: prompt, Category.sample: sampled}
