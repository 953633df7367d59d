import json
from pathlib import Path
from typing import Any

import pytest
import torch

from exporters import peft_adapter
from exporters.base import BadAdapter
from exporters.peft_adapter import AdapterConfig
from support.model_files import change_json, change_tensors, random_adapter
from support.tiny import tiny_model

Q_A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
Q_B = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "base")


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    return random_adapter(base, tmp_path / "adapter", targets=("q_proj", "lm_head"))


def test_what_was_written_is_read_back(base: Path, tmp_path: Path) -> None:
    config = AdapterConfig(3, 7.5, ("q_proj",), "org/base")
    tensors = {Q_A: torch.randn(3, 48), Q_B: torch.randn(48, 3)}
    peft_adapter.write(tmp_path / "a", config, tensors, base=base)
    read_config, read_tensors = peft_adapter.read(tmp_path / "a")
    assert read_config == config
    assert read_tensors.keys() == tensors.keys()
    assert all(torch.equal(read_tensors[name], tensors[name]) for name in tensors)


def test_views_and_shared_tensors_are_written(base: Path, tmp_path: Path) -> None:
    shared = torch.randn(48, 4)
    config = AdapterConfig(4, 4.0, ("q_proj",), "org/base")
    tensors = {Q_A: shared.t(), Q_B: shared}
    peft_adapter.write(tmp_path / "a", config, tensors, base=base)
    _, read = peft_adapter.read(tmp_path / "a")
    assert torch.equal(read[Q_A], shared.t())
    assert torch.equal(read[Q_B], shared)


def test_weights_are_stored_as_float32(base: Path, tmp_path: Path) -> None:
    config = AdapterConfig(4, 4.0, ("q_proj",), "org/base")
    tensors = {Q_A: torch.ones(4, 48).bfloat16(), Q_B: torch.ones(48, 4).double()}
    peft_adapter.write(tmp_path / "a", config, tensors, base=base)
    _, read = peft_adapter.read(tmp_path / "a")
    assert {tensor.dtype for tensor in read.values()} == {torch.float32}


def test_the_companions_of_the_base_come_along_byte_for_byte(base: Path, adapter: Path) -> None:
    names = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
    for name in [*names, "generation_config.json"]:
        assert (adapter / name).read_bytes() == (base / name).read_bytes()


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_missing_file_is_named(adapter: Path, name: str) -> None:
    (adapter / name).unlink()
    with pytest.raises(BadAdapter, match=f"{name}: is missing"):
        peft_adapter.read(adapter)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("peft_type", "IA3"),
        ("r", 0),
        ("r", "4"),
        ("lora_alpha", None),
        ("lora_alpha", float("nan")),
        ("lora_alpha", 10**400),
        ("target_modules", "all-linear"),
        ("use_rslora", True),
        ("use_dora", True),
        ("modules_to_save", ["embed_tokens"]),
        ("rank_pattern", {"q_proj": 8}),
        ("bias", "all"),
    ],
)
def test_a_config_that_means_something_else_is_refused(adapter: Path, key: str, value: Any) -> None:
    change_json(adapter / "adapter_config.json", **{key: value})
    with pytest.raises(BadAdapter, match=rf"adapter_config\.json: {key} is"):
        peft_adapter.read(adapter)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({Q_B: None}, r"q_proj\.lora_B\.weight is missing"),
        ({Q_A: torch.zeros(5, 48)}, r"q_proj\.lora_A\.weight has shape \(5, 48\), the rank is 4"),
        ({Q_B: torch.zeros(4, 48)}, r"q_proj\.lora_B\.weight has shape \(4, 48\), the rank is 4"),
        ({"extra": torch.zeros(1)}, "extra is not the name of a LoRA weight"),
        ({Q_A: torch.zeros(4, 48, dtype=torch.int64)}, "is not floating point"),
        (
            {
                Q_A.replace("q_proj", "k_proj"): torch.zeros(4, 48),
                Q_B.replace("q_proj", "k_proj"): torch.zeros(24, 4),
            },
            r"k_proj is not among the target modules",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(
    adapter: Path, change: dict[str, torch.Tensor | None], reason: str
) -> None:
    def apply(tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in change.items():
            if tensor is None:
                del tensors[name]
            else:
                tensors[name] = tensor

    change_tensors(adapter / "adapter_model.safetensors", apply)
    with pytest.raises(BadAdapter, match=reason):
        peft_adapter.read(adapter)


def test_a_target_without_weights_is_named(adapter: Path) -> None:
    change_json(adapter / "adapter_config.json", target_modules=["q_proj", "lm_head", "up_proj"])
    with pytest.raises(BadAdapter, match="the target module up_proj has no weights"):
        peft_adapter.read(adapter)


def test_pickled_weights_are_refused(adapter: Path) -> None:
    torch.save({}, adapter / "adapter_model.safetensors")
    with pytest.raises(BadAdapter, match="pickled weights are never loaded"):
        peft_adapter.read(adapter)


def test_a_whole_alpha_is_written_as_peft_types_it(adapter: Path) -> None:
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert type(config["lora_alpha"]) is int
