"""From logits to tokens, for rows of many requests at once.

Shapes: N rows, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from session.engine.port import SampleRequest

MIN_TEMPERATURE = 1e-6
"""A lower one counts as this: the likeliest token but for ties, and finite in float32."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """`logprob` is of the tempered distribution (the plain one where greedy), before top-k and
    top-p. A row whose logits are not finite has no token."""

    token: int | None
    logprob: float


def random_numbers(request: SampleRequest, index: int) -> np.random.Generator:
    """Its own for every sample: what one draws depends on no other."""
    if request.seed is None:
        return np.random.default_rng()
    return np.random.default_rng(np.random.SeedSequence((request.seed % 2**64, index)))


@torch.no_grad()
def draw(
    logits_NV: Tensor, requests: Sequence[SampleRequest], numbers: Sequence[np.random.Generator]
) -> list[Drawn]:
    """One token a row. A row that is not greedy takes one number of its generator."""
    logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    is_finite = logits_NV.sum(-1).isfinite().tolist()
    logprobs_NV = _tempered(logits_NV, requests)
    tokens_N = logits_NV.argmax(-1)
    random = [row for row, each in enumerate(requests) if each.temperature > 0]
    if random:
        rows = logprobs_NV if len(random) == len(requests) else logprobs_NV[random]
        uniform = torch.tensor([numbers[row].random() for row in random], dtype=torch.float64)
        kept = _filtered(rows, [requests[row] for row in random])
        tokens_N[random] = _by_inverse(kept, uniform)
    logprobs = logprobs_NV.gather(-1, tokens_N[:, None])[:, 0].tolist()
    rows_of = zip(tokens_N.tolist(), logprobs, is_finite, strict=True)
    return [Drawn(token if finite else None, value) for token, value, finite in rows_of]


def filter_logprobs(logprobs_NV: Tensor, request: SampleRequest) -> Tensor:
    """Top-k first; of what is left, the smallest set of tokens that reaches top-p."""
    if 0 < request.top_k < logprobs_NV.shape[-1]:
        kth_N1 = logprobs_NV.topk(request.top_k, -1).values[:, -1:]
        logprobs_NV = logprobs_NV.masked_fill(logprobs_NV < kth_N1, -math.inf)
    if request.top_p < 1.0:
        sorted_NV, order_NV = logprobs_NV.softmax(-1).sort(dim=-1, descending=True, stable=True)
        surplus_NV = sorted_NV.cumsum(-1) - sorted_NV >= request.top_p
        surplus_NV[:, 0] = False  # float32 knows no 1e-46: the likeliest stays, whatever top-p is
        outside_NV = torch.zeros_like(surplus_NV).scatter(-1, order_NV, surplus_NV)
        logprobs_NV = logprobs_NV.masked_fill(outside_NV, -math.inf)
    return logprobs_NV


def _tempered(logits_NV: Tensor, requests: Sequence[SampleRequest]) -> Tensor:
    if all(each.temperature in (0.0, 1.0) for each in requests):
        return logits_NV.log_softmax(-1)
    temperatures = [max(each.temperature or 1.0, MIN_TEMPERATURE) for each in requests]
    peak_N1 = logits_NV.max(-1, keepdim=True).values
    scale_N1 = logits_NV.new_tensor(temperatures)[:, None]
    return ((logits_NV - peak_N1) / scale_N1).log_softmax(-1)


def _filtered(logprobs_NV: Tensor, requests: Sequence[SampleRequest]) -> Tensor:
    asking = [row for row, each in enumerate(requests) if each.top_k != -1 or each.top_p < 1.0]
    if not asking:
        return logprobs_NV
    filtered_NV = logprobs_NV.clone()
    for row in asking:
        filtered_NV[row : row + 1] = filter_logprobs(logprobs_NV[row : row + 1], requests[row])
    return filtered_NV


def _by_inverse(logprobs_NV: Tensor, uniform_N: Tensor) -> Tensor:
    """The first token whose cumulative probability is above the number, of the sum of all."""
    reached_NV = logprobs_NV.exp().cumsum(-1, dtype=torch.float64)
    total_N1 = reached_NV[:, -1:]
    wanted_N1 = uniform_N[:, None].to(total_N1.device) * total_N1
    below_N1 = torch.minimum(wanted_N1, torch.nextafter(total_N1, torch.zeros_like(total_N1)))
    found_N = torch.searchsorted(reached_NV, below_N1, right=True)[:, 0]
    return found_N.clamp(max=reached_NV.shape[-1] - 1)  # beyond it where nothing is a number
