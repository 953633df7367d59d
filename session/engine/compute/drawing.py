"""From logits to tokens, for rows of many requests at once.

Shapes: N rows, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from session.engine.port import SampleRequest

BLOCK = 256  # tokens whose probabilities are summed first
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
    """The first token whose cumulative probability is above the number, of the sum of all.

    The block is found first and then the token in it: summing is fast, cumulative sums are not.
    """
    padding = -logprobs_NV.shape[-1] % BLOCK
    chances_NBX = F.pad(logprobs_NV.exp(), (0, padding)).view(len(logprobs_NV), -1, BLOCK)
    wanted_N1 = uniform_N[:, None].to(logprobs_NV.device)
    block_N1, before_N1 = _reached(chances_NBX.sum(-1), wanted_N1, scale=True)
    rows_N1 = torch.arange(len(logprobs_NV), device=block_N1.device)[:, None]
    place_N1, _ = _reached(chances_NBX[rows_N1, block_N1][:, 0], before_N1, scale=False)
    found_N = (block_N1 * BLOCK + place_N1)[:, 0]
    return found_N.clamp(max=logprobs_NV.shape[-1] - 1)  # beyond it where nothing is a number


def _reached(chances_NX: Tensor, wanted_N1: Tensor, *, scale: bool) -> tuple[Tensor, Tensor]:
    """Where the cumulative sum is above what is wanted, and what is wanted beyond that of before.
    It is always a place with a chance: rounding may ask for more than there is."""
    reached_NX = chances_NX.cumsum(-1, dtype=torch.float64)
    total_N1 = reached_NX[:, -1:]
    wanted_N1 = wanted_N1 * total_N1 if scale else wanted_N1
    wanted_N1 = torch.minimum(wanted_N1, torch.nextafter(total_N1, torch.zeros_like(total_N1)))
    place_N1 = torch.searchsorted(reached_NX, wanted_N1, right=True)
    place_N1 = place_N1.clamp(max=chances_NX.shape[-1] - 1)
    before_NX = reached_NX - chances_NX
    return place_N1, (wanted_N1 - before_NX.gather(-1, place_N1)).clamp(min=0.0)
