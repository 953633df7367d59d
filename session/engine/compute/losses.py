"""One pure function a loss: from log-probabilities to the loss of each token.

l = log p(target) under the model, q = `logprobs`, A = `advantages`, w = `weights` (1 where absent),
r = exp(l - q); lo and hi bound the ratio. Sums, never means; the caller sums over tokens.
All tensors are [N, K]: N tokens with K targets each (K is 1 but for cross-entropy's soft targets).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

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
    return -inputs["weights"] * _ratio(logprobs, inputs) * inputs["advantages"]


def ppo(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """-w min(r A, clip(r, lo, hi) A)"""
    ratio = _ratio(logprobs, inputs)
    clipped = ratio.clamp(config[LOW], config[HIGH])
    advantages = inputs["advantages"]
    return -inputs["weights"] * torch.minimum(ratio * advantages, clipped * advantages)


def cispo(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """-w sg(clip(r, lo, hi)) A l, where sg stops the gradient"""
    clipped = _ratio(logprobs, inputs).clamp(config[LOW], config[HIGH]).detach()
    return -inputs["weights"] * clipped * inputs["advantages"] * logprobs


def dro(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """-w (A l - beta / 2 (l - q)^2)"""
    distance = logprobs - inputs["logprobs"]
    gain = inputs["advantages"] * logprobs - 0.5 * config[BETA] * distance.square()
    return -inputs["weights"] * gain


def _ratio(logprobs: Tensor, inputs: Inputs) -> Tensor:
    return torch.exp(logprobs - inputs["logprobs"])


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
        if not math.isfinite(value):
            raise EngineError(f"config: {key} is {value}")
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
