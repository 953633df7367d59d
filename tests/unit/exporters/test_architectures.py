import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from exporters.architectures import expected_shapes, missing_by_loading
from exporters.shards import WEIGHTS
from support.model_files import change_tensors
from support.tiny import tiny_model


def real_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    models: Any = AutoModelForCausalLM  # its from_config has no types
    with torch.device("meta"):
        model = models.from_config(AutoConfig.for_model(**config))
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if config["tie_word_embeddings"]:
        del shapes["lm_head.weight"]
    return shapes


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
        ("llama", {"head_dim": 24}),
        ("mistral", {"tie_word_embeddings": False}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 32, "attention_bias": True}),
    ],
)
def test_the_shapes_are_those_of_transformers(
    tmp_path: Path, model_type: str, changes: dict[str, Any]
) -> None:
    config = json.loads((tiny_model(tmp_path / "tiny") / "config.json").read_text())
    config |= {"model_type": model_type, **changes}
    architecture = f"{model_type.capitalize()}ForCausalLM"
    assert expected_shapes(architecture, config) == real_shapes(config)


def test_other_architectures_are_left_to_the_loader(tmp_path: Path) -> None:
    config = json.loads((tiny_model(tmp_path / "tiny") / "config.json").read_text())
    assert expected_shapes("GemmaForCausalLM", config) is None


def test_a_config_that_leaves_a_size_to_defaults_is_left_to_the_loader(tmp_path: Path) -> None:
    config = json.loads((tiny_model(tmp_path / "tiny") / "config.json").read_text())
    del config["num_key_value_heads"]
    assert expected_shapes("LlamaForCausalLM", config) is None


def test_the_loader_tells_what_it_would_invent(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "tiny")
    assert missing_by_loading(model) == []
    change_tensors(model / WEIGHTS, lambda tensors: tensors.__delitem__("model.norm.weight"))
    assert missing_by_loading(model) == ["model.norm.weight"]
