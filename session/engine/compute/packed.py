"""Weights of linear layers once more, in the order in which the CPU's kernels read them.

Passes of several rows take less time by it. Only sampling computes with them: training keeps to the
plain weights, and so to its bits.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

# With fewer rows the kernels of the plain weights are the faster ones.
LEAST_ROWS = {torch.float32: 4, torch.bfloat16: 1}
_ROWS = 16  # of the products that the order is chosen for


class Packed:
    """The products of linear layers that read the same input, side by side, by one weight."""

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        weights = [each.weight.detach() for each in linears]
        self._least_rows = LEAST_ROWS[weights[0].dtype]
        self._bias = _joined_bias(linears)
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(torch.cat(weights), _ROWS)

    def suits(self, x_NI: Tensor) -> bool:
        """Whether it is faster than the plain weights."""
        return len(x_NI) >= self._least_rows

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._weight, self._bias, "none", [], ""
        )
        return product


def _joined_bias(linears: Sequence[nn.Linear]) -> Tensor | None:
    if all(each.bias is None for each in linears):
        return None
    biases = [
        each.weight.new_zeros(each.out_features) if each.bias is None else each.bias.detach()
        for each in linears
    ]
    return torch.cat(biases)


def can_pack(linear: nn.Linear) -> bool:
    weight = linear.weight
    is_known = weight.device.type == "cpu" and weight.dtype in LEAST_ROWS
    if weight.dtype is torch.bfloat16:
        return is_known and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return is_known and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch's
