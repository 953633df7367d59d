"""Bases: what is shared, and what cannot be loaded."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from session.engine.compute.engine import Compute
from session.engine.compute.model import BaseModel, load_base
from session.engine.port import BaseRef, EngineError
from support.tiny import LORA


def test_a_base_is_loaded_once_per_digest(ref: BaseRef) -> None:
    compute = Compute(micro_batch_tokens=64)
    compute.create_model("a", ref, LORA)
    compute.create_model("b", replace(ref, path=Path("/nowhere")), LORA)
    assert compute.model("a").base is compute.model("b").base


def test_a_base_is_float32_and_never_trained(base: BaseModel) -> None:
    parameters = list(base.layers["lm_head"].parameters())
    assert all(each.dtype is torch.float32 and not each.requires_grad for each in parameters)
    assert base.layers["lm_head"].linear.weight.shape == (384, 48)


def test_a_directory_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="base model none cannot be loaded"):
        load_base(BaseRef("none", "none", tmp_path))


def test_a_directory_that_is_away_is_named_and_no_fault_of_the_input(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"base model tiny cannot be read: .*/gone is miss"):
        load_base(BaseRef("tiny", "tiny", tmp_path / "gone"))


def test_an_architecture_that_changes_its_logits_is_refused(ref: BaseRef, tmp_path: Path) -> None:
    copy = shutil.copytree(ref.path, tmp_path / "granite")
    config = json.loads((copy / "config.json").read_text())
    config |= {"model_type": "granite", "architectures": ["GraniteForCausalLM"]}
    (copy / "config.json").write_text(json.dumps(config | {"logits_scaling": 8.0}))
    with pytest.raises(EngineError, match="GraniteForCausalLM changes its logits after the head"):
        load_base(BaseRef("granite", "granite", copy))


def test_end_ids_come_from_the_model_where_generation_has_none(
    ref: BaseRef, tmp_path: Path
) -> None:
    copy = shutil.copytree(ref.path, tmp_path / "copy")
    (copy / "generation_config.json").unlink()
    assert load_base(BaseRef("copy", "copy", copy)).end_ids == {2}


def test_stop_strings_need_a_tokenizer(ref: BaseRef, tmp_path: Path) -> None:
    copy = shutil.copytree(ref.path, tmp_path / "copy")
    (copy / "tokenizer.json").unlink()
    with pytest.raises(EngineError, match=r"copy has no tokenizer\.json"):
        _ = load_base(BaseRef("copy", "copy", copy)).tokenizer
