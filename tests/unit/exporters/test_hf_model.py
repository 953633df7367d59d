import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from exporters.base import BadModel
from exporters.hf_model import inspect
from exporters.shards import INDEX, WEIGHTS
from support.model_files import change_json, change_tensors, split
from support.tiny import tiny_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "model")


@pytest.fixture
def sharded(model: Path) -> Path:
    return split(model, shards=3)


def refused_file(model: Path) -> str:
    with pytest.raises(BadModel) as caught:
        inspect(model)
    assert caught.value.file in str(caught.value)
    return caught.value.file


def test_a_complete_model_is_described(model: Path) -> None:
    info = inspect(model)
    assert (info.architecture, info.context_length, info.vocab_size) == (
        "LlamaForCausalLM",
        512,
        json.loads((model / "config.json").read_text())["vocab_size"],
    )
    assert info.end_ids == (2,)
    assert {file.path for file in info.files} == {path.name for path in model.iterdir()}


def test_the_digest_follows_the_content(model: Path, tmp_path: Path) -> None:
    same = shutil.copytree(model, tmp_path / "same")
    assert inspect(same).digest == inspect(model).digest
    (same / "chat_template.jinja").write_text(
        (same / "chat_template.jinja").read_text() + "{# changed #}"
    )
    assert inspect(same).digest != inspect(model).digest


def test_a_file_that_is_not_used_does_not_change_the_digest(model: Path) -> None:
    before = inspect(model).digest
    (model / "README.md").write_text("# Tiny")
    assert inspect(model).digest == before


def test_shards_are_accepted(sharded: Path) -> None:
    assert INDEX in {file.path for file in inspect(sharded).files}


@pytest.mark.parametrize("name", ["config.json", WEIGHTS, "tokenizer.json"])
def test_a_missing_file_is_named(model: Path, name: str) -> None:
    (model / name).unlink()
    assert refused_file(model) == name


@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
)
def test_a_file_that_is_no_json_is_named(model: Path, name: str) -> None:
    (model / name).write_text("{")
    assert refused_file(model) == name


def test_a_path_that_is_no_directory_is_named(tmp_path: Path) -> None:
    assert refused_file(tmp_path / "nowhere") == str(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("architectures", None),
        ("architectures", ["LlamaForSequenceClassification"]),
        ("quantization_config", {"quant_method": "awq"}),
        ("vocab_size", "many"),
        ("max_position_embeddings", None),
        ("eos_token_id", 10**6),
    ],
)
def test_a_config_we_cannot_serve_is_refused(model: Path, key: str, value: Any) -> None:
    change_json(model / "config.json", **{key: value})
    assert refused_file(model) == "config.json"


class Marker:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "optimizer.pt", WEIGHTS, "notes.json"])
@pytest.mark.parametrize("zipped", [True, False])
def test_pickled_data_is_refused_under_any_name_and_never_run(
    model: Path, tmp_path: Path, name: str, zipped: bool
) -> None:
    ran = tmp_path / "ran"
    torch.save({"o": Marker(ran)}, model / name, _use_new_zipfile_serialization=zipped)
    assert refused_file(model) == name
    assert not ran.exists()


def test_a_text_pickle_named_as_weights_is_refused(model: Path) -> None:
    (model / WEIGHTS).write_bytes(pickle.dumps({"a": 1}, protocol=0))
    assert refused_file(model) == WEIGHTS


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00003.safetensors").unlink()
    assert refused_file(sharded) == "model-00002-of-00003.safetensors"


def test_a_missing_index_is_named(sharded: Path) -> None:
    (sharded / INDEX).unlink()
    assert refused_file(sharded) == INDEX


def test_a_shard_that_was_cut_is_named(sharded: Path) -> None:
    shard = sharded / "model-00003-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    assert refused_file(sharded) == shard.name


@pytest.mark.parametrize("tensor", ["model.norm.weight", "model.layers.1.mlp.up_proj.weight"])
def test_a_tensor_dropped_from_a_valid_file_is_missed(model: Path, tensor: str) -> None:
    change_tensors(model / WEIGHTS, lambda tensors: tensors.__delitem__(tensor))
    with pytest.raises(BadModel, match=tensor):
        inspect(model)


def test_an_untied_model_needs_its_head(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model", tied=False)
    inspect(model)
    change_tensors(model / WEIGHTS, lambda tensors: tensors.__delitem__("lm_head.weight"))
    with pytest.raises(BadModel, match=r"lm_head\.weight"):
        inspect(model)


def test_a_tensor_of_another_shape_is_named(model: Path) -> None:
    change_json(model / "config.json", intermediate_size=64)
    with pytest.raises(BadModel, match=r"mlp\.\w+_proj\.weight has shape"):
        inspect(model)


def test_a_tensor_without_a_place_is_named(model: Path) -> None:
    extra = torch.zeros(48)
    change_tensors(
        model / WEIGHTS, lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": extra})
    )
    with pytest.raises(BadModel, match=r"q_proj\.bias"):
        inspect(model)


def test_a_head_that_differs_from_the_embedding_it_is_tied_to_is_refused(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model", tied=False)
    change_json(model / "config.json", tie_word_embeddings=True)
    with pytest.raises(BadModel, match="differs from the embedding"):
        inspect(model)


def test_a_stored_head_that_equals_the_embedding_is_fine(model: Path) -> None:
    change_tensors(
        model / WEIGHTS,
        lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}),
    )
    assert inspect(model).architecture == "LlamaForCausalLM"


def test_a_tensor_in_two_shards_is_refused(sharded: Path) -> None:
    second = sharded / "model-00002-of-00003.safetensors"
    change_tensors(second, lambda t: t.update({"model.embed_tokens.weight": torch.zeros(1)}))
    assert refused_file(sharded) == second.name


def test_a_weights_file_that_no_index_names_is_refused(sharded: Path) -> None:
    shutil.copyfile(sharded / "model-00001-of-00003.safetensors", sharded / "old.safetensors")
    assert refused_file(sharded) == "old.safetensors"


def test_an_index_with_another_total_is_refused(sharded: Path) -> None:
    change_json(sharded / INDEX, metadata={"total_size": 1})
    assert refused_file(sharded) == INDEX


def test_end_ids_are_those_of_both_configs(model: Path) -> None:
    change_json(model / "generation_config.json", eos_token_id=[4, 2])
    change_json(model / "config.json", eos_token_id=0)
    assert inspect(model).end_ids == (4, 2, 0)


@pytest.mark.parametrize("in_file", [True, False])
def test_a_template_whose_end_token_is_no_end_id_is_refused(model: Path, in_file: bool) -> None:
    change_json(model / "generation_config.json", eos_token_id=0)
    change_json(model / "config.json", eos_token_id=0)
    template = model / "chat_template.jinja"
    if not in_file:
        change_json(model / "tokenizer_config.json", chat_template=template.read_text())
        template.unlink()
    with pytest.raises(BadModel, match=r"'<\|im_end\|>' \(id 2\), .* ids \[0\]") as caught:
        inspect(model)
    expected = "chat_template.jinja" if in_file else "tokenizer_config.json"
    assert caught.value.file == expected


def test_a_model_without_a_chat_template_is_fine(model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    change_json(model / "generation_config.json", eos_token_id=0)
    assert inspect(model).end_ids == (0, 2)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(model: Path) -> None:
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    extra = {**tokenizer["added_tokens"][0], "id": 10**4, "content": "<extra>"}
    tokenizer["added_tokens"].append(extra)
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["<extra>"] = 10**4
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert refused_file(model) == "tokenizer.json"
