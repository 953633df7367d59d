"""AdamW with decoupled weight decay, as `torch.optim.AdamW`, from old tensors to new ones.

An adapter has hundreds of small tensors: torch's `_foreach_` functions, which `torch.optim` is made
of too, take all of them in one call.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from session.engine.compute.lora import Tensors, map_tensors
from session.engine.port import AdamParams, EngineError, NonFiniteGradient

LARGEST = 1e9  # keeps the products of these factors within float32


@dataclass(frozen=True, slots=True)
class Moments:
    """By parameter name. `count` is the number of steps that they have seen."""

    count: int
    exp_avg: Tensors
    exp_avg_sq: Tensors

    @classmethod
    def fresh(cls, weights: Tensors) -> "Moments":
        return cls(
            0, map_tensors(torch.zeros_like, weights), map_tensors(torch.zeros_like, weights)
        )


def check_params(params: AdamParams, dtype: torch.dtype) -> None:
    """Of weights of this type."""
    # eps must be positive in it: a parameter without gradient would be divided 0 / 0.
    ratio, clip = params.lora_plus_ratio, params.grad_clip_norm
    allowed = {
        "learning_rate": 0 <= params.learning_rate <= LARGEST,
        "beta1": 0 <= params.beta1 < 1,
        "beta2": 0 <= params.beta2 < 1,
        "eps": 0 < params.eps <= LARGEST and float(torch.tensor(params.eps, dtype=dtype)) > 0,
        "weight_decay": 0 <= params.weight_decay <= LARGEST,
        "grad_clip_norm": clip is None or clip >= 0,
        "lora_plus_ratio": ratio is None or 0 < ratio <= LARGEST,
    }
    for name, is_allowed in allowed.items():
        value = getattr(params, name)
        if not is_allowed or (value is not None and not math.isfinite(value)):
            raise EngineError(f"{name} is {value}, which AdamW cannot use")


def global_norm(gradient: Tensors) -> float:
    norm = _norm(gradient, None)
    if math.isfinite(norm):
        return norm
    return _norm(gradient, torch.float64)  # the squares of large numbers overflow before they do


def _norm(gradient: Tensors, dtype: torch.dtype | None) -> float:
    norms = torch._foreach_norm(list(gradient.values()), dtype=dtype)
    return float(torch.linalg.vector_norm(torch.stack(norms)))


def adamw_step(
    weights: Tensors, gradient: Tensors, moments: Moments, params: AdamParams
) -> tuple[dict[str, Tensor], Moments, float]:
    """New weights, new moments, and the gradient's norm before clipping."""
    norm = global_norm(gradient)
    if not math.isfinite(norm):
        raise _refused(f"is {norm}")
    names = list(weights)
    slopes = [gradient[name] for name in names]
    limit = min(norm, params.grad_clip_norm or norm)
    if limit * limit > torch.finfo(slopes[0].dtype).max:  # the second moments would stay infinite
        raise _refused(f"is {norm:g}, too large for its square: clip it")
    if limit < norm:
        slopes = list(torch._foreach_mul(slopes, limit / (norm + 1e-6)))
    beta1, beta2 = params.beta1, params.beta2
    count = moments.count + 1
    avg = torch._foreach_lerp([moments.exp_avg[name] for name in names], slopes, 1 - beta1)
    avg_sq = torch._foreach_mul([moments.exp_avg_sq[name] for name in names], beta2)
    torch._foreach_addcmul_(avg_sq, slopes, slopes, value=1 - beta2)
    spread = torch._foreach_sqrt(avg_sq)
    torch._foreach_div_(spread, math.sqrt(1 - beta2**count))
    torch._foreach_add_(spread, params.eps)
    rates = [_rate(name, params) for name in names]
    updated = torch._foreach_mul(
        [weights[name] for name in names], [1 - rate * params.weight_decay for rate in rates]
    )
    torch._foreach_addcdiv_(updated, avg, spread, [-rate / (1 - beta1**count) for rate in rates])
    after = Moments(count, _named(names, avg), _named(names, avg_sq))
    return _named(names, updated), after, norm


def _refused(why: str) -> NonFiniteGradient:
    return NonFiniteGradient(
        f"the gradient norm {why}: step refused, gradient cleared, weights as before"
    )


def _rate(name: str, params: AdamParams) -> float:
    if params.lora_plus_ratio is not None and ".lora_B." in name:
        return params.learning_rate * params.lora_plus_ratio
    return params.learning_rate


def _named(names: Sequence[str], tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    return dict(zip(names, tensors, strict=True))
