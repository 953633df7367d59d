"""Weights of linear layers once more, in the order in which the CPU's kernels read them.

Passes of several rows take less time by it. Only sampling computes with them: training keeps to the
plain weights, and so to its bits.
"""

import torch
from torch import Tensor, nn

# With fewer rows the kernels of the plain weights are the faster ones.
LEAST_ROWS = 4
_DTYPES = frozenset((torch.float32, torch.bfloat16))


class Packed:
    """A linear layer's product by its packed weight."""

    def __init__(self, linear: nn.Linear) -> None:
        self._bias = linear.bias
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(
            linear.weight.detach(), LEAST_ROWS
        )

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._weight, self._bias, "none", [], ""
        )
        return product


def can_pack(linear: nn.Linear) -> bool:
    weight = linear.weight
    is_known = weight.device.type == "cpu" and weight.dtype in _DTYPES
    if weight.dtype is torch.bfloat16:
        return is_known and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return is_known and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch's
