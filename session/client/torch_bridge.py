"""The only module of the client that imports torch; others import it where it is needed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from session.client.checks import numbers
from session.client.errors import InvalidInput

Tensor = torch.Tensor
Array = npt.NDArray[Any]
CustomLoss = Callable[[Any, list[Tensor]], tuple[Tensor, dict[str, float]]]

_RETURNS = (
    "a custom loss must return (loss, metrics): a tensor of one number computed from logprobs, "
    "and a dict of numbers"
)


def from_array(array: Array) -> Tensor:
    return torch.from_numpy(array.copy())


def differentiate(
    loss_fn: CustomLoss, data: Sequence[Any], logprobs: Sequence[Array]
) -> tuple[float, dict[str, float], list[Array]]:
    """C of the log-probabilities, the caller's metrics, and the gradient of C for each datum."""
    leaves = [from_array(array).requires_grad_() for array in logprobs]
    loss, metrics = _checked(loss_fn(list(data), list(leaves)))  # copies: its lists are its own
    found = torch.autograd.grad(loss.sum(), leaves, allow_unused=True)
    gradients = [
        np.zeros(leaf.shape, np.float32) if gradient is None else gradient.numpy()
        for leaf, gradient in zip(leaves, found, strict=True)
    ]
    for index, gradient in enumerate(gradients):
        if not np.isfinite(gradient).all():
            raise InvalidInput(f"the custom loss has no finite gradient for data[{index}]")
    return loss.item(), metrics, gradients


def _checked(returned: object) -> tuple[Tensor, dict[str, float]]:
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise InvalidInput(f"{_RETURNS}; this one returned {_described(returned)}")
    loss, metrics = returned
    if not isinstance(loss, Tensor):
        raise InvalidInput(f"{_RETURNS}; its loss is {_described(loss)}")
    if loss.numel() != 1 or loss.is_complex():
        raise InvalidInput(f"{_RETURNS}; its loss has shape {list(loss.shape)}, {loss.dtype}")
    if not loss.requires_grad:
        raise InvalidInput(f"{_RETURNS}; its loss does not depend on logprobs")
    if not isinstance(metrics, Mapping):
        raise InvalidInput(f"{_RETURNS}; its metrics are {_described(metrics)}")
    try:
        return loss, numbers("metrics", metrics)
    except InvalidInput as error:
        raise InvalidInput(f"{_RETURNS}; {error}") from None


def _described(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"of type {type(value).__name__}"
