"""The lines of a user's training script that many tests need."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai

import modelyard
from support.service import Service
from support.service import modelyard as command

ADAM = modelyard.AdamParams(learning_rate=1e-2)
LENGTHS = (7, 30, 2, 16)
QUESTION = "What is the capital of France?"


def connect(
    service: Service, group: str | None = None, *, api_key: str | None = None
) -> modelyard.ServiceClient:
    return modelyard.ServiceClient(service.url, api_key or service.api_key, group=group)


def get(service: Service, path: str, *, api_key: str | None = None, **params: Any) -> Any:
    """What REST answers, without our client."""
    headers = {"Authorization": f"Bearer {api_key or service.api_key}"}
    answer = httpx.get(
        service.url + path, params=params, headers=headers, timeout=60, trust_env=False
    )
    answer.raise_for_status()
    return answer.json()


def chat_client(service: Service, *, api_key: str | None = None) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{service.url}/openai/v1",
        api_key=api_key or service.api_key,
        max_retries=0,
        timeout=60,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    )


def ask(chat: openai.OpenAI, model: str, question: str = QUESTION, *, limit: int = 12) -> str:
    """The greedy answer."""
    answer = chat.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_completion_tokens=limit,
        temperature=0,
    )
    return answer.choices[0].message.content or ""


def prompt(tokens: Sequence[int]) -> modelyard.ModelInput:
    return modelyard.ModelInput.from_ints(list(tokens))


def datum(tokens: Sequence[int], weights: Sequence[float] | None = None) -> modelyard.Datum:
    """Predict each token from those before it."""
    inputs = {"target_tokens": list(tokens[1:])}
    scores = {"weights": list(weights or [1.0] * (len(tokens) - 1))}
    return modelyard.Datum(prompt(tokens[:-1]), {**inputs, **scores})


def batch(seed: int = 0, lengths: Sequence[int] = LENGTHS) -> list[modelyard.Datum]:
    """Random tokens of the tiny model."""
    random = np.random.default_rng(seed)
    return [datum(random.integers(3, 300, length + 1).tolist()) for length in lengths]


def lesson(training: modelyard.TrainingClient, question: str, answer: str) -> modelyard.Datum:
    """One exchange as the chat template writes it, end token included; only the answer counts."""
    tokenizer: Any = training.get_tokenizer()
    messages = [{"role": "user", "content": question}]
    asked = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    said = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
    return datum([*asked, *said], [0.0] * (len(asked) - 1) + [1.0] * len(said))


def step(
    training: modelyard.TrainingClient,
    data: Sequence[modelyard.Datum],
    loss: str = "cross_entropy",
    config: Mapping[str, float] | None = None,
) -> float:
    output = training.forward_backward(data, loss, config)
    training.optim_step(ADAM).result()
    return output.result().loss


def download(service: Service, ref: str, folder: Path) -> Path:
    """Every file of a version, as the command line fetches and checks them."""
    done = command(service.home, "pull", ref, str(folder))
    assert done.returncode == 0, done.stderr
    return folder


def eventually(holds: Callable[[], bool], *, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.05)
