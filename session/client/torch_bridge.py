"""The only module of the client that imports torch; others import it where it is needed."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from session.client.errors import InvalidInput

Tensor = torch.Tensor
Array = npt.NDArray[Any]
CustomLoss = Callable[[Any, list[Tensor]], tuple[Tensor, dict[str, float]]]


def from_array(array: Array) -> Tensor:
    return torch.from_numpy(array.copy())


def differentiate(
    loss_fn: CustomLoss, data: Sequence[Any], logprobs: Sequence[Array]
) -> tuple[float, dict[str, float], list[Array]]:
    """C of the log-probabilities, the caller's metrics, and the gradient of C for each datum."""
    leaves = [from_array(array).requires_grad_() for array in logprobs]
    try:
        loss, metrics = loss_fn(list(data), leaves)
    except SystemExit as error:  # would end the background loop instead of reaching the caller
        raise RuntimeError(f"the custom loss tried to exit: {error}") from error
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise InvalidInput("a custom loss returns (one number computed from logprobs, metrics)")
    found = torch.autograd.grad(loss.sum(), leaves, allow_unused=True)
    gradients = [
        np.zeros(leaf.shape, np.float32) if gradient is None else gradient.numpy()
        for leaf, gradient in zip(leaves, found, strict=True)
    ]
    for index, gradient in enumerate(gradients):
        if not np.isfinite(gradient).all():
            raise InvalidInput(f"the custom loss has no finite gradient for data[{index}]")
    return loss.item(), {key: float(value) for key, value in metrics.items()}, gradients
