"""One pure function a loss: from log-probabilities to the loss of each token.

l = log p(target) under the model, q = `logprobs`, A = `advantages`, w = `weights` (1 where absent),
r = exp(l - q); lo and hi bound the ratio. Sums, never means; the caller sums over tokens.
All tensors are [N, K]: N tokens with K targets each (K is 1 but for cross-entropy's soft targets).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from session.engine.compute.numeric import is_finite
from session.engine.port import EngineError, Loss

LOW = "clip_low_threshold"
HIGH = "clip_high_threshold"
BETA = "beta"
Inputs = Mapping[str, Tensor]
Config = Mapping[str, float]


def cross_entropy(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """-w l"""
    return -inputs["weights"] * logprobs


def importance_sampling(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """-w r A"""
    advantages, distance = _policy(logprobs, inputs)
    return -inputs["weights"] * _ratio(distance, advantages != 0) * advantages


def ppo(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """-w min(r A, clip(r, lo, hi) A)"""
    advantages, distance = _policy(logprobs, inputs)
    # Clipped for sure, so a constant: an infinite ratio has no slope of 0 on the way back.
    is_over = (advantages > 0) & (distance.detach().exp() > config[HIGH])
    moving = _ratio(distance, (advantages != 0) & ~is_over)
    ratio = moving.masked_fill(is_over, config[HIGH])
    clipped = ratio.clamp(config[LOW], config[HIGH])
    return -inputs["weights"] * torch.minimum(ratio * advantages, clipped * advantages)


def cispo(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """-w sg(clip(r, lo, hi)) A l, where sg stops the gradient"""
    advantages, distance = _policy(logprobs, inputs)
    clipped = distance.detach().exp().clamp(config[LOW], config[HIGH])
    return -inputs["weights"] * clipped * advantages * logprobs


def dro(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """-w (A l - beta / 2 (l - q)^2)"""
    advantages, distance = _policy(logprobs, inputs)
    gain = advantages * logprobs - 0.5 * config[BETA] * distance.square()
    return -inputs["weights"] * gain


def _policy(logprobs: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """A and l - q; both are 0 where w is: 0 times what overflows there would be NaN."""
    counts = inputs["weights"] != 0
    distance = torch.where(counts, logprobs - inputs["logprobs"], 0.0)
    return torch.where(counts, inputs["advantages"], 0.0), distance


def _ratio(distance: Tensor, matters: Tensor) -> Tensor:
    """r, and 1 without a slope where it does not matter: exp may overflow there too."""
    return torch.where(matters, distance, 0.0).exp()


@dataclass(frozen=True, slots=True)
class Formula:
    """`needs` are the float inputs beside `target_tokens`; `defaults` the configuration's keys, and
    None for one that must be given."""

    terms: Callable[[Tensor, Inputs, Config], Tensor]
    needs: tuple[str, ...] = ()
    defaults: Mapping[str, float | None] = field(default_factory=dict)


_POLICY = ("logprobs", "advantages")
FORMULAS: Mapping[Loss, Formula] = {
    Loss.cross_entropy: Formula(cross_entropy),
    Loss.importance_sampling: Formula(importance_sampling, _POLICY),
    Loss.ppo: Formula(ppo, _POLICY, {LOW: 0.8, HIGH: 1.2}),
    Loss.cispo: Formula(cispo, _POLICY, {LOW: 0.0, HIGH: 4.0}),
    Loss.dro: Formula(dro, _POLICY, {BETA: None}),  # its scale is the task's: none fits all
}


def complete_config(loss: Loss, config: Config) -> Config:
    """The configuration with its defaults; refuses keys that this loss does not have."""
    defaults = FORMULAS[loss].defaults
    for key, value in config.items():
        if key not in defaults:
            known = " and ".join(defaults) or "none"
            raise EngineError(f"config: {loss} has no {key!r} (its keys: {known})")
        if not is_finite(value):
            raise EngineError(f"config: {key} is {value!r}, not a finite number")
    for key, default in defaults.items():
        if default is None and key not in config:
            raise EngineError(f"config: {key} is missing: {loss} needs it")
    given = {key: default for key, default in defaults.items() if default is not None}
    complete = {**given, **config}
    if LOW in complete and complete[LOW] > complete[HIGH]:
        raise EngineError(f"config: {LOW} {complete[LOW]} is above {HIGH} {complete[HIGH]}")
    if complete.get(BETA, 0.0) < 0:
        raise EngineError(f"config: {BETA} is {complete[BETA]}, below zero")
    return complete
