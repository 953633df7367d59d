"""The real model of the benchmarks, and batches for it."""

from collections.abc import Sequence

import numpy as np

from registry.settings import EngineSettings, Settings
from session.engine.port import AdamParams, BaseRef, Datum, LoraConfig
from support.real_model import NAME, real_model

VOCABULARY = 49_152
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LORA = LoraConfig(16, 32.0, TARGETS, seed=7)
ADAM = AdamParams(1e-4, beta1=0.9, beta2=0.95, eps=1e-12, weight_decay=0.0, grad_clip_norm=None)


def base() -> BaseRef:
    """Downloaded and converted once."""
    return BaseRef(NAME, NAME, real_model(say=print))


def engine_settings() -> EngineSettings:
    """Device, dtype and threads, from the environment like the service's."""
    return Settings().engine


def batch(lengths: Sequence[int]) -> list[Datum]:
    """Random tokens that all count; the weights make the loss a mean."""
    random = np.random.default_rng(0)
    weight = 1 / sum(lengths)
    data = []
    for length in lengths:
        tokens = random.integers(3, VOCABULARY, length + 1)
        weights = np.full(length, weight, np.float32)
        data.append(Datum(tokens[:-1], {"target_tokens": tokens[1:], "weights": weights}))
    return data
