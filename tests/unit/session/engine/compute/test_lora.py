"""New adapters, and the configurations that are refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from session.engine.compute.lora import new_adapter
from session.engine.compute.model import BaseModel
from session.engine.port import EngineError
from support.tiny import LORA


def test_a_new_adapter_is_random_in_a_and_zero_in_b(base: BaseModel) -> None:
    adapter = new_adapter(base.layers, LORA)
    assert len(adapter.tensors) == 2 * (2 * 3 + 1)  # two layers of three targets, and the head
    for name, tensor in adapter.tensors.items():
        assert tensor.any() == (".lora_A." in name)
    name = "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight"
    assert adapter.tensors[name].abs().max() <= 96**-0.5  # one over the root of the inputs


def test_the_seed_decides_the_adapter(base: BaseModel) -> None:
    one, same = (new_adapter(base.layers, LORA).tensors for _ in range(2))
    other = new_adapter(base.layers, replace(LORA, seed=8)).tensors
    name = "base_model.model.lm_head.lora_A.weight"
    assert all(torch.equal(one[each], same[each]) for each in one)
    assert not torch.equal(one[name], other[name])


@pytest.mark.parametrize("rank", [0, 257, 4.5])
def test_ranks_out_of_range_are_refused(base: BaseModel, rank: Any) -> None:
    message = rf"lora\.rank is {rank}, not a whole number between 1 and 256"
    with pytest.raises(EngineError, match=message):
        new_adapter(base.layers, replace(LORA, rank=rank))


@pytest.mark.parametrize(
    "alpha", [0.0, float("nan"), 1e300, "x", 10**400], ids=["0", "nan", "large", "text", "huge"]
)
def test_an_alpha_that_is_no_positive_number_is_refused(base: BaseModel, alpha: Any) -> None:
    with pytest.raises(EngineError, match=r"lora\.alpha"):
        new_adapter(base.layers, replace(LORA, alpha=alpha))


@pytest.mark.parametrize("target", ["query", "embed_tokens", "proj"])
def test_a_target_that_the_model_lacks_is_named(base: BaseModel, target: str) -> None:
    with pytest.raises(EngineError, match=rf"'{target}' is no linear layer.*down_proj"):
        new_adapter(base.layers, replace(LORA, targets=("q_proj", target)))


def test_no_targets_are_refused(base: BaseModel) -> None:
    with pytest.raises(EngineError, match=r"lora\.targets is empty"):
        new_adapter(base.layers, replace(LORA, targets=()))
