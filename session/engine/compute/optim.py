"""AdamW with decoupled weight decay, as `torch.optim.AdamW`, from old tensors to new ones."""

import math
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


def check_params(params: AdamParams) -> None:
    # eps must be positive: a parameter without gradient would be divided 0 / 0.
    ratio, clip = params.lora_plus_ratio, params.grad_clip_norm
    allowed = {
        "learning_rate": 0 <= params.learning_rate <= LARGEST,
        "beta1": 0 <= params.beta1 < 1,
        "beta2": 0 <= params.beta2 < 1,
        "eps": 0 < params.eps <= LARGEST,
        "weight_decay": 0 <= params.weight_decay <= LARGEST,
        "grad_clip_norm": clip is None or clip >= 0,
        "lora_plus_ratio": ratio is None or 0 < ratio <= LARGEST,
    }
    for name, is_allowed in allowed.items():
        value = getattr(params, name)
        if not is_allowed or (value is not None and not math.isfinite(value)):
            raise EngineError(f"{name} is {value}, which AdamW cannot use")


def global_norm(gradient: Tensors) -> float:
    norms = [torch.linalg.vector_norm(each) for each in gradient.values()]
    return float(torch.linalg.vector_norm(torch.stack(norms)))


def adamw_step(
    weights: Tensors, gradient: Tensors, moments: Moments, params: AdamParams
) -> tuple[dict[str, Tensor], Moments, float]:
    """New weights, new moments, and the gradient's norm before clipping."""
    norm = global_norm(gradient)
    if not math.isfinite(norm):
        raise NonFiniteGradient(
            f"the gradient norm is {norm}: step refused, gradient cleared, weights as before"
        )
    if params.grad_clip_norm and norm > params.grad_clip_norm:
        scale = params.grad_clip_norm / (norm + 1e-6)
        gradient = map_tensors(lambda g: g * scale, gradient)
    beta1, beta2 = params.beta1, params.beta2
    moments = Moments(
        moments.count + 1,
        map_tensors(lambda m, g: m.lerp(g, 1 - beta1), moments.exp_avg, gradient),
        map_tensors(
            lambda v, g: (v * beta2).addcmul_(g, g, value=1 - beta2), moments.exp_avg_sq, gradient
        ),
    )
    updated = {name: _update(name, weight, moments, params) for name, weight in weights.items()}
    return updated, moments, norm


def _update(name: str, weight: Tensor, moments: Moments, params: AdamParams) -> Tensor:
    rate = params.learning_rate
    if params.lora_plus_ratio is not None and ".lora_B." in name:
        rate *= params.lora_plus_ratio
    correction1 = 1 - params.beta1**moments.count
    correction2 = 1 - params.beta2**moments.count
    spread = (moments.exp_avg_sq[name].sqrt() / math.sqrt(correction2)).add_(params.eps)
    decayed = weight * (1 - rate * params.weight_decay)
    return decayed.addcdiv_(moments.exp_avg[name], spread, value=-rate / correction1)
