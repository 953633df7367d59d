import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from exporters import peft_adapter
from exporters.base import BadAdapter, BadModel
from exporters.merge import MergeReport, merge
from exporters.shards import INDEX, WEIGHTS
from support.model_files import cast, change_json, change_tensors, random_adapter, split
from support.tiny import tiny_model

Q = "model.layers.0.self_attn.q_proj"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "base")


def stored(model: Path) -> dict[str, torch.Tensor]:
    """All tensors of a model, whatever files they are in."""
    files = sorted(model.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def test_a_bfloat16_base_gets_the_float32_sum_rounded_once(base: Path, tmp_path: Path) -> None:
    cast(base, torch.bfloat16)
    adapter = random_adapter(base, tmp_path / "adapter", targets=("q_proj",), rank=8)
    report = merge(base, adapter, tmp_path / "merged")
    weight = load_file(base / WEIGHTS)[f"{Q}.weight"]
    _, update = peft_adapter.read(adapter)
    a, b = (update[peft_adapter.tensor_key(Q, side)] for side in "AB")
    exact = weight.float() + (b @ a) * 2.0
    merged = stored(tmp_path / "merged")[f"{Q}.weight"]
    assert merged.dtype == torch.bfloat16
    assert torch.equal(merged, exact.bfloat16())
    assert not torch.equal(merged, weight + ((b @ a) * 2.0).bfloat16())
    assert report.dtype == "bfloat16"
    assert report.max_abs_err >= (exact - merged.float()).abs().max().item() > 0


def test_what_the_adapter_leaves_alone_keeps_its_bits(base: Path, tmp_path: Path) -> None:
    adapter = random_adapter(base, tmp_path / "adapter", targets=("q_proj", "down_proj"))
    report = merge(base, adapter, tmp_path / "merged")
    before, after = stored(base), stored(tmp_path / "merged")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert report == MergeReport(4, "float32", 0.0, untied=False)
    assert before.keys() == after.keys()
    assert {name.split(".")[-2] for name in changed} == {"q_proj", "down_proj"}
    assert len(changed) == 4


def test_every_other_file_comes_along_byte_for_byte(base: Path, tmp_path: Path) -> None:
    change_json(base / "config.json", eos_token_id=2)
    change_json(base / "generation_config.json", eos_token_id=[2, 4])
    adapter = random_adapter(base, tmp_path / "adapter", targets=("q_proj",))
    merge(base, adapter, tmp_path / "merged")
    for file in base.iterdir():
        if file.name != WEIGHTS:
            assert (tmp_path / "merged" / file.name).read_bytes() == file.read_bytes()


def test_a_tied_head_that_was_trained_becomes_its_own_tensor(base: Path, tmp_path: Path) -> None:
    adapter = random_adapter(base, tmp_path / "adapter", targets=("lm_head",))
    report = merge(base, adapter, tmp_path / "merged")
    before, after = stored(base), stored(tmp_path / "merged")
    config = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert report.untied
    assert config["tie_word_embeddings"] is False
    embedding = "model.embed_tokens.weight"
    assert torch.equal(after[embedding], before[embedding])
    assert not torch.equal(after["lm_head.weight"], after[embedding])


@pytest.mark.parametrize("targets", [("q_proj", "up_proj"), ("lm_head", "q_proj")])
def test_shards_stay_as_they_are(base: Path, tmp_path: Path, targets: tuple[str, ...]) -> None:
    adapter = random_adapter(base, tmp_path / "adapter", targets=targets)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    merge(base, adapter, whole)
    merge(split(base, shards=3), adapter, parts)
    index = json.loads((parts / INDEX).read_text())
    first, second = stored(whole), stored(parts)
    assert {f.name for f in parts.iterdir()} >= {f.name for f in base.iterdir()}
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    total = sum(tensor.nbytes for tensor in second.values())
    assert index["metadata"]["total_size"] == total


def test_a_module_that_the_base_lacks_is_named(base: Path, tmp_path: Path) -> None:
    adapter = random_adapter(base, tmp_path / "adapter", targets=("q_proj",))
    layer_1 = peft_adapter.tensor_key("model.layers.1.self_attn.q_proj", "A")

    def move(tensors: dict[str, torch.Tensor]) -> None:
        for name in (layer_1, layer_1.replace("lora_A", "lora_B")):
            tensors[name.replace("layers.1", "layers.7")] = tensors.pop(name)

    change_tensors(adapter / "adapter_model.safetensors", move)
    with pytest.raises(BadAdapter, match=r"layers\.7\.self_attn\.q_proj\.lora_A.* has no place"):
        merge(base, adapter, tmp_path / "merged")


def test_an_adapter_for_another_vocabulary_is_refused(base: Path, tmp_path: Path) -> None:
    adapter = random_adapter(base, tmp_path / "adapter", targets=("lm_head",))
    key = peft_adapter.tensor_key("lm_head", "B")
    change_tensors(
        adapter / "adapter_model.safetensors", lambda t: t.update({key: torch.zeros(400, 4)})
    )
    with pytest.raises(BadAdapter, match=r"shape \[400, 48\], lm_head\.weight of the base is"):
        merge(base, adapter, tmp_path / "merged")


def test_a_sum_that_overflows_the_bases_dtype_is_refused(base: Path, tmp_path: Path) -> None:
    cast(base, torch.float16)
    adapter = random_adapter(base, tmp_path / "adapter", targets=("q_proj",))
    file = adapter / "adapter_model.safetensors"
    save_file({name: 1e4 * tensor for name, tensor in load_file(file).items()}, file)
    with pytest.raises(BadAdapter, match="is not finite"):
        merge(base, adapter, tmp_path / "merged")


def test_nothing_is_left_of_a_merge_that_failed(base: Path, tmp_path: Path) -> None:
    adapter = random_adapter(base, tmp_path / "adapter", targets=("q_proj",))
    (base / "tokenizer.json").unlink()
    with pytest.raises(BadModel, match=r"tokenizer\.json"):
        merge(base, adapter, tmp_path / "merged")
    assert {path.name for path in tmp_path.iterdir()} == {"base", "adapter"}


def test_a_target_that_is_in_use_is_left_alone(base: Path, tmp_path: Path) -> None:
    adapter = random_adapter(base, tmp_path / "adapter", targets=("q_proj",))
    target = shutil.copytree(base, tmp_path / "merged")
    with pytest.raises(FileExistsError):
        merge(base, adapter, target)
    assert stored(target).keys() == stored(base).keys()
