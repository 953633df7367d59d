"""Packed weights change how long a sampling pass takes, and nothing else."""

import pytest
import torch
from torch import nn

from session.engine.compute.engine import Compute
from session.engine.compute.model import BaseModel, load_base
from session.engine.compute.packed import LEAST_ROWS, Packed, can_pack
from session.engine.port import BaseRef, Loss, SampleRequest
from support.tiny import LORA, tiny_datum

PROMPT = tiny_datum(20).tokens


@pytest.fixture
def base(ref: BaseRef) -> BaseModel:
    return load_base(ref)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("rows", [1, 4, 33])
@pytest.mark.parametrize("bias", [True, False])
def test_the_product_is_that_of_the_layer(
    dtype: torch.dtype, bound: float, rows: int, bias: bool
) -> None:
    linear = nn.Linear(96, 40, bias=bias, dtype=dtype).requires_grad_(requires_grad=False)
    x = torch.randn(1, rows, 96, dtype=dtype)
    assert can_pack(linear)
    torch.testing.assert_close(Packed([linear])(x), linear(x), rtol=bound, atol=bound)


def test_a_base_that_is_too_large_is_not_packed(base: BaseModel) -> None:
    size = sum(each.linear.weight.nbytes for each in base.layers.values())
    base.prepare_sampling(size - 1)
    assert all(each.packed is None for each in base.layers.values())


def test_what_nobody_has_packed_kernels_for_is_not_packed(ref: BaseRef) -> None:
    base = load_base(ref, dtype=torch.float64)
    base.prepare_sampling(2**40)
    assert all(each.packed is None for each in base.layers.values())


def test_training_has_the_same_bits_beside_packed_sampling(ref: BaseRef) -> None:
    scores = []
    for has_sampled in (False, True):
        compute = Compute(micro_batch_tokens=64)
        compute.create_model("m", ref, LORA)
        if has_sampled:
            request = SampleRequest(ref, "m", PROMPT, max_tokens=2, n=LEAST_ROWS[torch.float32])
            compute.join(request, compute.weights("m"))
            while not compute.sampling.is_idle:
                compute.sampling.step()
        (result,) = compute.forward("m", [tiny_datum(30)], Loss.cross_entropy, {})
        scores.append(result[0].logprobs.tolist())
    assert scores[0] == scores[1]
