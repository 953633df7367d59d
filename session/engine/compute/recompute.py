"""Decoder layers that keep nothing but their input, and compute the rest again on the way back.

It costs one more forward pass of the layers, and changes no bit.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer


class Recompute:
    """Of one body. transformers' own switch asks for training mode, which has dropout."""

    def __init__(self, body: nn.Module) -> None:
        self._on = False
        for layer in body.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                setattr(layer, "forward", partial(self._forward, layer.forward))  # noqa: B010  (mypy: a method)

    @contextmanager
    def on(self, *, when: bool) -> Iterator[None]:
        """Until the end of the block, if `when`."""
        self._on = when
        try:
            yield
        finally:
            self._on = False

    def _forward(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._on:
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
