"""Every loss and every tensor's gradient against plain torch on PEFT, in both precisions."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from session.engine.compute.engine import Compute
from session.engine.port import BaseRef, Datum, Loss, LossOutput
from support.golden import Golden, assert_same_gradient, golden, restored, train, trained_adapter
from support.tiny import ADAM, LORA, tiny_datum

LENGTHS = [7, 30, 2, 16, 25, 1, 12, 9]
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")
EVERYTHING = replace(LORA, targets=TARGETS)
# Bounds of the log-probabilities, of a loss beside the sum of its terms (each, and all together),
# and of a tensor's gradient.
BOUNDS = {"float64": (1e-9, 1e-9, 1e-9), "float32": (1e-5, 1e-6, 1e-5)}
pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # in PEFT
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning"),
]


def batch(loss: Loss) -> list[Datum]:
    """Weights of both signs; every third position is masked. With several targets where allowed."""
    data = [tiny_datum(length, loss=loss) for length in LENGTHS]
    for datum in data:
        datum.inputs["weights"][::3] = 0.0
    return [*data, _soft(11)] if loss is Loss.cross_entropy else data


def _soft(length: int) -> Datum:
    first, *others = (tiny_datum(length, seed=seed) for seed in range(3))
    every = [first, *others]
    return Datum(
        first.tokens, {key: np.stack([d.inputs[key] for d in every], 1) for key in first.inputs}
    )


@pytest.fixture(scope="module")
def adapter(ref: BaseRef, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("adapter")
    return trained_adapter(ref, EVERYTHING, batch(Loss.cross_entropy), target)


@cache
def expected(ref: BaseRef, adapter: Path, loss: Loss, dtype: str) -> Golden:
    return golden(ref, adapter, batch(loss), loss, dtype=getattr(torch, dtype))


def new_compute(ref: BaseRef, adapter: Path, dtype: str, *, tokens: int = 40) -> Compute:
    return restored(Compute(micro_batch_tokens=tokens, dtype=dtype), ref, EVERYTHING, adapter)


def assert_same_losses(results: Sequence[LossOutput], wanted: Golden, dtype: str) -> None:
    of_logprobs, of_losses, _ = BOUNDS[dtype]
    for result, terms, scores in zip(results, wanted.terms, wanted.logprobs, strict=True):
        np.testing.assert_allclose(result.logprobs, scores.numpy(), rtol=0, atol=of_logprobs)
        assert abs(result.loss - float(terms.sum())) <= of_losses * float(terms.abs().sum())
    every = torch.cat([terms.flatten() for terms in wanted.terms]).double()
    total = sum(result.loss for result in results)
    assert abs(total - float(every.sum())) <= of_losses * float(every.abs().sum())


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("loss", list(Loss))
def test_losses_and_gradients_are_those_of_plain_torch_on_peft(
    ref: BaseRef, adapter: Path, loss: Loss, dtype: str
) -> None:
    compute = new_compute(ref, adapter, dtype)
    results = train(compute, batch(loss), loss)
    wanted = expected(ref, adapter, loss, dtype)
    assert_same_losses(results, wanted, dtype)
    assert_same_gradient(compute.model("m").gradient, wanted.gradient, within=BOUNDS[dtype][2])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("calls", [1, 2, 7, 9])
def test_calls_add_up_to_the_same_gradient(
    ref: BaseRef, adapter: Path, calls: int, dtype: str
) -> None:
    compute = new_compute(ref, adapter, dtype)
    data = batch(Loss.cross_entropy)
    results = [
        each
        for part in np.array_split(np.arange(len(data)), calls)
        for each in train(compute, [data[n] for n in part], Loss.cross_entropy)
    ]
    wanted = expected(ref, adapter, Loss.cross_entropy, dtype)
    assert_same_losses(results, wanted, dtype)
    assert_same_gradient(compute.model("m").gradient, wanted.gradient, within=BOUNDS[dtype][2])


@pytest.mark.parametrize("tokens", [1, 40, 4096])
@pytest.mark.parametrize("loss", [Loss.cross_entropy, Loss.ppo])
def test_neither_order_nor_micro_batches_change_the_gradient(
    ref: BaseRef, adapter: Path, loss: Loss, tokens: int
) -> None:
    compute = new_compute(ref, adapter, "float64", tokens=tokens)
    data = batch(loss)
    order = np.random.default_rng(3).permutation(len(data)).tolist()
    shuffled = train(compute, [data[n] for n in order], loss)
    results = [shuffled[order.index(n)] for n in range(len(data))]
    wanted = expected(ref, adapter, loss, "float64")
    assert_same_losses(results, wanted, "float64")
    assert_same_gradient(compute.model("m").gradient, wanted.gradient, within=1e-9)


def test_bfloat16_is_of_the_base_alone(ref: BaseRef, adapter: Path) -> None:
    """Everything that adds up is float32, and lies as near as eight bits allow."""
    compute = new_compute(ref, adapter, "bfloat16")
    results = train(compute, batch(Loss.cross_entropy), Loss.cross_entropy)
    wanted = expected(ref, adapter, Loss.cross_entropy, "float64")
    for result, scores in zip(results, wanted.logprobs, strict=True):
        np.testing.assert_allclose(result.logprobs, scores.numpy(), rtol=0, atol=0.2)
    model = compute.model("m")
    assert model.base.head.linear.weight.dtype is torch.bfloat16
    assert_same_gradient(model.gradient, wanted.gradient, within=0.05)
    compute.optim_step("m", ADAM)
    after = compute.model("m")
    kept = [after.adapter.tensors, after.moments.exp_avg, after.moments.exp_avg_sq]
    assert {each.dtype for tensors in kept for each in tensors.values()} == {torch.float32}


@pytest.mark.parametrize("rank", [1, 256])
def test_the_smallest_and_the_largest_rank_train_like_pefts(
    untied: BaseRef, tmp_path: Path, rank: int
) -> None:
    lora, data = replace(EVERYTHING, rank=rank, alpha=3.0), batch(Loss.cross_entropy)
    saved = trained_adapter(untied, lora, data, tmp_path)
    compute = restored(Compute(micro_batch_tokens=40, dtype="float64"), untied, lora, saved)
    results = train(compute, data, Loss.cross_entropy)
    wanted = golden(untied, saved, data, Loss.cross_entropy, dtype=torch.float64)
    assert_same_losses(results, wanted, "float64")
    assert_same_gradient(compute.model("m").gradient, wanted.gradient, within=1e-9)
