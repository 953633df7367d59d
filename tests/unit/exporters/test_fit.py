"""Weights from outside beside the base that they are said to come from."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from exporters import directory, fit
from exporters.base import BadFile
from exporters.directory import ADAPTER, MERGED
from exporters.merge import merge
from exporters.shards import read_shards
from support.model_files import cast, change_json, change_tensors, random_adapter
from support.tiny import tiny_model

Q_A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
Q_B = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "base")


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    return random_adapter(base, tmp_path / "adapter", targets=("q_proj", "lm_head"))


@pytest.fixture
def merged(base: Path, tmp_path: Path) -> Path:
    attention = random_adapter(base, tmp_path / "attention", targets=("q_proj",))
    merge(base, attention, tmp_path / "merged")
    return tmp_path / "merged"


def compare(path: Path, base: Path) -> None:
    layout = directory.recognise(path)
    content = directory.examine(layout)
    shards = read_shards(base)
    if content.adapter is not None:
        fit.fit_adapter(content.adapter, layout.parts[ADAPTER], base, shards)
    if content.merged is not None:
        fit.fit_merged(layout.parts[MERGED], content.merged, base, shards)


def add_tokens(path: Path, count: int) -> None:
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    known = tokenizer.get_vocab_size()
    rows = json.loads((path.parent / "base" / "config.json").read_text())["vocab_size"]
    tokenizer.add_tokens([f"<new-{n}>" for n in range(rows - known + count)])
    tokenizer.save(str(path / "tokenizer.json"))


def test_what_was_made_from_a_base_fits_it(base: Path, adapter: Path, merged: Path) -> None:
    compare(adapter, base)
    compare(merged, base)


def test_a_merged_model_of_another_dtype_fits(base: Path, merged: Path) -> None:
    compare(cast(merged, torch.bfloat16), base)


def test_a_head_of_its_own_fits_a_tied_base(base: Path, adapter: Path, tmp_path: Path) -> None:
    merge(base, adapter, tmp_path / "untied")
    compare(tmp_path / "untied", base)


def test_added_tokens_without_rows_are_counted(base: Path, adapter: Path) -> None:
    add_tokens(adapter, 4)
    with pytest.raises(BadFile, match=r"tokenizer\.json: .*: 4 token rows missing"):
        compare(adapter, base)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({Q_A: torch.zeros(4, 40)}, r"an update of shape \[48, 40\], .* is \[48, 48\]"),
        ({Q_B: torch.zeros(50, 4)}, r"an update of shape \[50, 48\]"),
        ({Q_A: None, Q_B: None}, r"lacks an update of model\.layers\.0\.self_attn\.q_proj"),
        (
            {
                Q_A.replace("layers.0", "layers.9"): torch.zeros(4, 48),
                Q_B.replace("layers.0", "layers.9"): torch.zeros(48, 4),
            },
            "has no place: the base has no model.layers.9",
        ),
    ],
)
def test_an_adapter_that_does_not_fit_is_named(
    base: Path, adapter: Path, change: dict[str, torch.Tensor | None], reason: str
) -> None:
    def apply(tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in change.items():
            if tensor is None:
                del tensors[name]
            else:
                tensors[name] = tensor

    change_tensors(adapter / "adapter_model.safetensors", apply)
    with pytest.raises(BadFile, match=reason):
        compare(adapter, base)


def change_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    return lambda model: change_tensors(model / "model.safetensors", change)


def end_elsewhere(model: Path) -> None:
    for name in ("generation_config.json", "config.json"):
        change_json(model / name, eos_token_id=0)


EMBEDDING = "model.embed_tokens.weight"


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (
            change_weights(lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight")),
            r"model\.safetensors: lacks the tensor model\.layers\.1\.mlp\.up_proj\.weight",
        ),
        (
            change_weights(lambda tensors: tensors.update(extra=torch.zeros(1))),
            "holds the tensor extra, which the base has not",
        ),
        (
            change_weights(lambda tensors: tensors.update({EMBEDDING: torch.zeros(390, 48)})),
            r"model\.embed_tokens\.weight has shape \[390, 48\], the base's has",
        ),
        (
            change_weights(lambda tensors: tensors.update({"lm_head.weight": torch.ones(380, 48)})),
            "lm_head",
        ),
        (lambda model: change_json(model / "config.json", vocab_size=390), "vocab_size is 390"),
        (
            lambda model: change_json(model / "config.json", num_attention_heads=2),
            "num_attention_heads is 2, the base's 4",
        ),
        (
            lambda model: change_json(model / "config.json", architectures=["Qwen2ForCausalLM"]),
            "its architecture is Qwen2ForCausalLM",
        ),
        (
            end_elsewhere,
            r"the chat template ends .* which is not among the end-of-sequence ids \[0\]",
        ),
    ],
)
def test_a_merged_model_that_does_not_fit_is_named(
    base: Path, merged: Path, damage: Callable[[Path], None], reason: str
) -> None:
    damage(merged)
    with pytest.raises(BadFile, match=reason):
        compare(merged, base)


def test_a_tied_head_with_other_values_is_refused(base: Path, merged: Path) -> None:
    def untie(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors[EMBEDDING] + 1

    change_tensors(merged / "model.safetensors", untie)
    with pytest.raises(BadFile, match="differs from the embedding"):
        compare(merged, base)
