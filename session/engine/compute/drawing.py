"""From logits to tokens, for rows of many requests at once.

Shapes: N rows, V vocabulary, B blocks of X tokens. A chance is a token's probability times a number
that all of its row share.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from session.engine.port import SampleRequest

BLOCK = 256  # tokens whose chances are summed first
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
    """One token a row. A row that is not greedy takes one number of its generator.

    The vocabulary is gone over as few times as can be: once for the largest logit, once for the
    chances, once for their sums.
    """
    logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    peak_N, tokens_N = logits_NV.max(-1)
    scale_N = logits_NV.new_tensor([_scale(each) for each in requests])
    chances_NV = _over_peak(logits_NV, peak_N, scale_N).exp_()
    sums_NB = _block_sums(chances_NV)
    total_N = sums_NB.sum(-1, dtype=torch.float64)
    for row, request in enumerate(requests):
        if request.top_k != -1 or request.top_p < 1.0:
            one = slice(row, row + 1)
            tempered_1V = _over_peak(logits_NV[one], peak_N[one], scale_N[one])
            chances_NV[one] = filter_logprobs(tempered_1V, request).exp_()
            sums_NB[one] = _block_sums(chances_NV[one])
    random = [row for row, each in enumerate(requests) if each.temperature > 0]
    if random:
        uniform_R = torch.tensor([numbers[row].random() for row in random], dtype=torch.float64)
        rows = slice(None) if len(random) == len(requests) else random
        tokens_N[random] = _by_inverse(chances_NV[rows], sums_NB[rows], uniform_R)
    chosen_N = logits_NV.gather(-1, tokens_N[:, None])[:, 0]
    logprobs_N = (chosen_N - peak_N) / scale_N - total_N.log()
    drawn = zip(tokens_N.tolist(), logprobs_N.tolist(), total_N.isfinite().tolist(), strict=True)
    return [Drawn(token if finite else None, value) for token, value, finite in drawn]


def _scale(request: SampleRequest) -> float:
    """The temperature; greedy rows have the plain distribution."""
    return max(request.temperature or 1.0, MIN_TEMPERATURE)


def _over_peak(logits_NV: Tensor, peak_N: Tensor, scale_N: Tensor) -> Tensor:
    """Tempered logits, of which the largest is 0."""
    over_NV = logits_NV - peak_N[:, None]
    return over_NV if (scale_N == 1).all() else over_NV.div_(scale_N[:, None])


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


def _blocks(chances_NV: Tensor) -> Tensor:
    """[N, B, X], padded with nothing to whole blocks."""
    padding = -chances_NV.shape[-1] % BLOCK
    whole = F.pad(chances_NV, (0, padding)) if padding else chances_NV
    return whole.view(len(chances_NV), -1, BLOCK)


def _block_sums(chances_NV: Tensor) -> Tensor:
    return _blocks(chances_NV).sum(-1)


def _by_inverse(chances_NV: Tensor, sums_NB: Tensor, uniform_N: Tensor) -> Tensor:
    """The first token whose cumulative chance is above the number, of the sum of all.

    The block is found first and then the token in it: summing is fast, cumulative sums are not.
    """
    wanted_N1 = uniform_N[:, None].to(chances_NV.device)
    block_N1, before_N1 = _reached(sums_NB, wanted_N1, scale=True)
    rows_N1 = torch.arange(len(chances_NV), device=block_N1.device)[:, None]
    inside_NX = _blocks(chances_NV)[rows_N1, block_N1][:, 0]
    place_N1, _ = _reached(inside_NX, before_N1, scale=False)
    found_N = (block_N1 * BLOCK + place_N1)[:, 0]
    return found_N.clamp(max=chances_NV.shape[-1] - 1)  # beyond it where nothing is a number


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
