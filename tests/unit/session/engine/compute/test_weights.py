"""Files: a run that goes on from them is the same run, and what does not fit is named."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from session.engine.compute import weights
from session.engine.compute.engine import Compute
from session.engine.port import BaseRef, EngineError, Loss, PoisonedGradient, WeightsMismatch
from support.tiny import ADAM, LORA, tiny_datum, tiny_ref

DATA = [tiny_datum(length) for length in (9, 4, 17)]
NAME = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def new_compute(ref: BaseRef, *, seed: int = 7) -> Compute:
    compute = Compute(micro_batch_tokens=32)
    compute.create_model("m", ref, replace(LORA, seed=seed))
    return compute


def step(compute: Compute, seed: int = 0) -> list[float]:
    """A call whose gradient stays pending, after a step on the one before."""
    data = [tiny_datum(length, seed=seed) for length in (9, 4, 17)]
    work = compute.forward_backward("m", data, Loss.cross_entropy, {})
    losses = [each.loss for part in work for each in part.values()]
    compute.optim_step("m", ADAM)
    return losses


def stored(compute: Compute, target: Path) -> Path:
    weights.write(compute.model("m"), target, with_optimizer=True)
    return target


def test_a_run_continues_from_its_files_bit_for_bit(ref: BaseRef, tmp_path: Path) -> None:
    first = new_compute(ref)
    for seed in range(3):
        step(first, seed)
    list(first.forward_backward("m", DATA, Loss.cross_entropy, {}))  # pending
    stored(first, tmp_path)
    second = new_compute(ref, seed=99)
    second.load("m", tmp_path, with_optimizer=True)
    assert [step(first, seed) for seed in (3, 4)] == [step(second, seed) for seed in (3, 4)]
    one, other = first.model("m"), second.model("m")
    assert one.step == other.step == 5
    for name, tensor in one.adapter.tensors.items():
        assert torch.equal(tensor, other.adapter.tensors[name])
        assert torch.equal(one.moments.exp_avg_sq[name], other.moments.exp_avg_sq[name])


def test_without_the_optimizer_only_the_weights_are_taken(ref: BaseRef, tmp_path: Path) -> None:
    first, second = new_compute(ref), new_compute(ref, seed=99)
    step(first)
    stored(first, tmp_path)
    second.load("m", tmp_path, with_optimizer=False)
    training = second.model("m")
    assert torch.equal(training.adapter.tensors[NAME], first.model("m").adapter.tensors[NAME])
    assert (training.step, training.moments.count) == (0, 0)


def test_state_is_stored_by_parameter_name(ref: BaseRef, tmp_path: Path) -> None:
    compute = new_compute(ref)
    step(compute)
    stored(compute, tmp_path)
    optimizer = load_file(tmp_path / "state/optimizer.safetensors")
    names = compute.model("m").adapter.tensors
    assert set(optimizer) == {f"{kind}.{n}" for kind in ("exp_avg", "exp_avg_sq") for n in names}
    assert not (tmp_path / "state/gradient.safetensors").exists()
    state = json.loads((tmp_path / "state/state.json").read_text())
    assert (state["step"], state["adam_step"], state["poisoned"]) == (1, 1, False)


def test_a_poisoned_gradient_stays_poisoned_in_its_files(ref: BaseRef, tmp_path: Path) -> None:
    first, second = new_compute(ref), new_compute(ref)
    with pytest.raises(EngineError):
        list(first.forward_backward("m", [], Loss.cross_entropy, {}))
    stored(first, tmp_path)
    second.load("m", tmp_path, with_optimizer=True)
    with pytest.raises(PoisonedGradient):
        second.optim_step("m", ADAM)


def rewrite(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("checkpoints/hf/adapter_model.safetensors", NAME),
        ("state/optimizer.safetensors", f"exp_avg.{NAME}"),
    ],
)
def test_a_tensor_that_is_missing_misshaped_or_unknown_is_named(
    ref: BaseRef, tmp_path: Path, file: str, name: str
) -> None:
    compute = new_compute(ref)
    stored(compute, tmp_path)
    rewrite(tmp_path / file, lambda tensors: tensors.update({name: torch.zeros(4, 3)}))
    with pytest.raises(WeightsMismatch, match=rf"{name} has shape \[4, 3\]"):
        compute.load("m", tmp_path, with_optimizer=True)
    rewrite(tmp_path / file, lambda tensors: tensors.pop(name))
    with pytest.raises(WeightsMismatch, match=f"{name} is missing"):
        compute.load("m", tmp_path, with_optimizer=True)


def test_a_failed_load_keeps_the_weights(ref: BaseRef, tmp_path: Path) -> None:
    compute = new_compute(ref)
    before = compute.model("m").adapter
    with pytest.raises(WeightsMismatch, match=r"adapter_config\.json: is missing"):
        compute.load("m", tmp_path, with_optimizer=False)
    assert compute.model("m").adapter is before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": 2}, "the adapter has rank 4, the model rank 2"),
        ({"alpha": 9.0}, "the adapter has alpha 8.0, the model alpha 9.0"),
        ({"targets": ("q_proj",)}, "the model has no base_model"),
        ({"targets": (*LORA.targets, "o_proj")}, "o_proj.lora_A.weight is missing"),
    ],
)
def test_another_configuration_is_not_adopted(
    ref: BaseRef, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    stored(new_compute(ref), tmp_path)
    other = Compute(micro_batch_tokens=32)
    other.create_model("m", ref, replace(LORA, **change))  # type: ignore[arg-type]  # one of each
    with pytest.raises(WeightsMismatch, match=message):
        other.load("m", tmp_path, with_optimizer=True)


@pytest.mark.parametrize("content", ["", "[]", '{"version": 2}', '{"version": 1, "step": "1"}'])
def test_a_state_that_cannot_be_read_is_refused(ref: BaseRef, tmp_path: Path, content: str) -> None:
    compute = new_compute(ref)
    stored(compute, tmp_path)
    (tmp_path / "state/state.json").write_text(content)
    with pytest.raises(WeightsMismatch, match=r"state/state\.json"):
        compute.load("m", tmp_path, with_optimizer=True)


@pytest.mark.parametrize("key", ["step", "adam_step"])
@pytest.mark.parametrize("value", [-1, -5, 10**400], ids=["-1", "-5", "huge"])
def test_a_count_of_steps_that_cannot_be_is_refused_by_name(
    ref: BaseRef, tmp_path: Path, key: str, value: int
) -> None:
    compute = new_compute(ref)
    path = stored(compute, tmp_path) / "state/state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(WeightsMismatch, match=rf"state/state\.json: {key} is {value}"):
        compute.load("m", tmp_path, with_optimizer=True)


def test_a_truncated_file_is_named(ref: BaseRef, tmp_path: Path) -> None:
    compute = new_compute(ref)
    path = stored(compute, tmp_path) / "state/optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(WeightsMismatch, match=r"state/optimizer\.safetensors: "):
        compute.load("m", tmp_path, with_optimizer=True)


def test_an_adapter_of_another_model_is_refused(ref: BaseRef, tmp_path: Path) -> None:
    compute = new_compute(ref)
    directory = stored(compute, tmp_path / "saved") / "checkpoints/hf"
    other = tiny_ref(tmp_path / "base", seed=1)
    config = json.loads((other.path / "config.json").read_text())
    assert config["hidden_size"] == 48
    compute.load_adapter("x", other, directory)  # same shapes: it fits
    rewrite(
        directory / "adapter_model.safetensors",
        lambda tensors: tensors.update({NAME: torch.zeros(4, 32)}),
    )
    with pytest.raises(WeightsMismatch, match=rf"{NAME} has shape \[4, 32\], the model \[4, 48\]"):
        compute.load_adapter("y", other, directory)
