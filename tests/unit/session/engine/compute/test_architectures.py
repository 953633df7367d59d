"""Tiny random models of real classes, against what transformers and PEFT make of them."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from exporters.merge import merge
from session.engine.compute.engine import Compute
from session.engine.compute.model import load_base
from session.engine.port import BaseRef, Datum, EngineError, Loss
from support.architectures import SUPPORTED, targets, write_architecture
from support.golden import assert_same_gradient, finish, golden, restored, train, trained_adapter
from support.model_files import change_json
from support.tiny import LORA

LENGTHS = (3, 20, 9, 30)
pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # in PEFT
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning"),
]


@pytest.fixture(scope="module")
def refs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, BaseRef]:
    return {name: write_architecture(name, tmp_path_factory.mktemp(name)) for name in SUPPORTED}


def data() -> list[Datum]:
    random = np.random.default_rng(0)
    drawn = [random.integers(3, 128, length + 1) for length in LENGTHS]
    return [
        Datum(t[:-1], {"target_tokens": t[1:], "weights": np.ones(len(t) - 1, np.float32)})
        for t in drawn
    ]


@pytest.mark.parametrize("name", SUPPORTED)
def test_log_probabilities_are_those_of_transformers(
    refs: Mapping[str, BaseRef], name: str
) -> None:
    compute = Compute(micro_batch_tokens=64)
    compute.create_model("m", refs[name], replace(LORA, targets=targets(name)))
    assert_like_transformers(compute, refs[name])


def assert_like_transformers(compute: Compute, ref: BaseRef) -> None:
    """Each sequence alone there, all in one pass here."""
    results = finish(compute.forward("m", data(), Loss.cross_entropy, {}))
    model = AutoModelForCausalLM.from_pretrained(ref.path, attn_implementation="eager")
    for datum, result in zip(data(), results, strict=True):
        with torch.no_grad():
            logprobs = model(torch.from_numpy(datum.tokens)[None]).logits[0].log_softmax(-1)
        places = torch.from_numpy(datum.inputs["target_tokens"])[:, None]
        expected = logprobs.gather(-1, places)[:, 0]
        np.testing.assert_allclose(result.logprobs, expected.numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", SUPPORTED)
def test_gradients_are_those_of_peft(
    refs: Mapping[str, BaseRef], tmp_path: Path, name: str
) -> None:
    lora = replace(LORA, targets=targets(name))
    adapter = trained_adapter(refs[name], lora, data(), tmp_path)
    compute = Compute(micro_batch_tokens=64, dtype="float64")
    results = train(restored(compute, refs[name], lora, adapter), data(), Loss.cross_entropy)
    attention = "eager" if name == "gpt_oss" else "sdpa"
    wanted = golden(
        refs[name],
        adapter,
        data(),
        Loss.cross_entropy,
        dtype=torch.float64,
        attention=attention,
    )
    for result, terms in zip(results, wanted.terms, strict=True):
        assert result.loss == pytest.approx(float(terms.sum()), rel=1e-7)
    assert_same_gradient(compute.model("m").gradient, wanted.gradient, within=1e-7)


@pytest.mark.parametrize("name", SUPPORTED)
def test_a_merged_adapter_is_what_was_trained(
    refs: Mapping[str, BaseRef], tmp_path: Path, name: str
) -> None:
    base = shutil.copytree(refs[name].path, tmp_path / "base")
    change_json(base / "config.json", tie_word_embeddings=None)  # many say it by their class alone
    lora = replace(LORA, targets=targets(name))
    adapter = trained_adapter(refs[name], lora, data(), tmp_path / "save")
    merge(base, adapter, tmp_path / "merged")
    compute = restored(Compute(micro_batch_tokens=64), refs[name], lora, adapter)
    assert_like_transformers(compute, replace(refs[name], path=tmp_path / "merged"))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("gemma3", {"final_logit_softcapping": 30.0}, "Gemma3ForCausalLM changes its logits"),
        ("gemma3", {"use_bidirectional_attention": True}, "its tokens see those after them"),
        ("qwen3", {"layer_types": ["linear_attention"] * 2}, "layers of linear_attention"),
        ("llama", {"quantization_config": {"quant_method": "mxfp4"}}, "quantised by mxfp4"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(
    refs: Mapping[str, BaseRef], tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    copy = shutil.copytree(refs[name].path, tmp_path / "copy")
    change_json(copy / "config.json", **changes)
    with pytest.raises(EngineError, match=rf"base model tiny.*{message}"):
        load_base(BaseRef("tiny", "tiny", copy))


@pytest.mark.parametrize("name", ["gpt_oss", "qwen3_moe"])
def test_experts_in_one_tensor_are_refused_by_name(refs: Mapping[str, BaseRef], name: str) -> None:
    lora = replace(LORA, targets=("q_proj", "down_proj"))
    with pytest.raises(EngineError, match="'down_proj' holds the experts of this model"):
        Compute(micro_batch_tokens=64).create_model("m", refs[name], lora)


def test_attention_scores_are_capped_as_gemma_2_does(tmp_path: Path) -> None:
    ref = write_architecture("gemma2", tmp_path, attn_logit_softcapping=1.0)
    compute = Compute(micro_batch_tokens=64)
    compute.create_model("m", ref, replace(LORA, targets=targets("gemma2")))
    assert_like_transformers(compute, ref)


def test_a_longrope_model_ends_at_its_original_context(tmp_path: Path) -> None:
    """Past it, the numbers of a sequence would depend on the longest of its pass."""
    factors = {"short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [4.0, 4.0, 8.0, 9.0]}
    original = {"original_max_position_embeddings": 32}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 1.0} | original
    ref = write_architecture("phi3", tmp_path, rope_parameters=rope | factors, **original)
    compute = Compute(micro_batch_tokens=64)
    compute.create_model("m", ref, replace(LORA, targets=targets("phi3")))
    assert_like_transformers(compute, ref)
    long = Datum(np.full(33, 3), {"target_tokens": np.full(33, 3)})
    with pytest.raises(EngineError, match="33 tokens, longer than the context 32"):
        train(compute, [long], Loss.cross_entropy)
