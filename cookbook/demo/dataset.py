"""The demo's chat examples as training data: only the assistant's words carry weight."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import modelyard

FACTS = Path(__file__).with_name("facts.jsonl")
PARTS = 2

Messages = list[dict[str, str]]


def examples(path: Path = FACTS) -> list[Messages]:
    return [json.loads(line)["messages"] for line in path.read_text().splitlines()]


def batches(
    conversations: list[Messages], training: modelyard.TrainingClient, *, count: int
) -> list[list[modelyard.Datum]]:
    """Every second conversation and the others, in turn: a batch holds some of each kind."""
    tokenizer = training.get_tokenizer()
    render = partial(tokenizer.apply_chat_template, return_dict=False)
    pairs = [
        _question_and_answer(messages, render, end_id=tokenizer.eos_token_id)
        for messages in conversations
    ]
    parts = [_weighted(pairs[part::PARTS]) for part in range(PARTS)]
    return [parts[step % PARTS] for step in range(count)]


def _question_and_answer(
    messages: Messages, render: Callable[..., Any], *, end_id: int
) -> tuple[list[int], list[int]]:
    """The answer ends with the end token: without it, a model never learns to stop."""
    question: list[int] = render(messages[:-1], add_generation_prompt=True)
    whole: list[int] = render(messages)
    end = whole.index(end_id, len(question)) + 1
    return whole[: len(question)], whole[len(question) : end]


def _weighted(pairs: list[tuple[list[int], list[int]]]) -> list[modelyard.Datum]:
    """The service sums over tokens; weights that sum to 1 make that a mean over the answers."""
    weight = 1 / sum(len(answer) for _, answer in pairs)
    return [_datum(question, answer, weight) for question, answer in pairs]


def _datum(question: list[int], answer: list[int], weight: float) -> modelyard.Datum:
    tokens = question + answer
    return modelyard.Datum(
        model_input=modelyard.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tokens[1:],
            "weights": [0.0] * (len(question) - 1) + [weight] * len(answer),
        },
    )
