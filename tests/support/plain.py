"""The losses as the specification writes them, and generation as transformers does it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from session.engine.port import Loss

BETA = 0.1


def config_of(loss: Loss) -> dict[str, float]:
    """What the loss has no default for."""
    return {"beta": BETA} if loss is Loss.dro else {}


def plain_terms(loss: Loss, logprobs: Tensor, inputs: Mapping[str, Any]) -> Tensor:
    """One term a token."""
    given = {key: torch.from_numpy(np.asarray(value)) for key, value in inputs.items()}
    w = given["weights"]
    if loss is Loss.cross_entropy:
        return -w * logprobs
    ratio, advantages = torch.exp(logprobs - given["logprobs"]), given["advantages"]
    if loss is Loss.importance_sampling:
        return -w * ratio * advantages
    if loss is Loss.ppo:
        return -w * torch.min(ratio * advantages, ratio.clip(0.8, 1.2) * advantages)
    if loss is Loss.dro:
        return -w * (advantages * logprobs - BETA / 2 * (logprobs - given["logprobs"]) ** 2)
    return -w * ratio.detach().clip(0.0, 4.0) * advantages * logprobs


def load(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def greedy_tokens(path: Path, prompt: Sequence[int], *, limit: int) -> list[int]:
    """What comes after the prompt."""
    ids = torch.tensor([list(prompt)])
    mask = torch.ones_like(ids)
    model = load(path)
    whole = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=limit)
    found: list[int] = whole[0, len(prompt) :].tolist()
    return found


def greedy_answer(path: Path, question: str, *, limit: int) -> str:
    """To one question, as the model's own chat template puts it."""
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    messages = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    tokens = greedy_tokens(path, prompt, limit=limit)
    return str(tokenizer.decode(tokens, skip_special_tokens=True))
