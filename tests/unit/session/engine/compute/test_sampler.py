"""Sampling against transformers' own, and against what training says of the same tokens."""

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from session.engine.compute import weights
from session.engine.compute.attention import Sequences
from session.engine.compute.drawing import filter_logprobs
from session.engine.compute.engine import Compute
from session.engine.compute.model import BaseModel
from session.engine.compute.sampler import _has_stop_string
from session.engine.port import BaseRef, Datum, EngineError, Loss, SampleChunk, SampleRequest
from support.tiny import ADAM, LORA, tiny_datum

PROMPT = tiny_datum(40).tokens


@dataclass
class Sampled:
    tokens: list[int]
    logprobs: list[float]
    reason: str | None


@pytest.fixture(scope="module")
def compute(ref: BaseRef) -> Compute:
    """Holds the model "m", trained so far that its B matters."""
    compute = Compute(micro_batch_tokens=16)
    compute.create_model("m", ref, LORA)
    for seed in range(2):
        data = [tiny_datum(length, seed=seed) for length in (9, 17)]
        list(compute.forward_backward("m", data, Loss.cross_entropy, {}))
        compute.optim_step("m", replace(ADAM, learning_rate=5e-2))
    return compute


def sample(compute: Compute, ref: BaseRef, **settings: Any) -> list[Sampled]:
    given = {"weights": "m", "prompt": PROMPT, "max_tokens": 20, "stop_ids": (), **settings}
    request = SampleRequest(ref, **given)
    found = [Sampled([], [], None) for _ in range(request.n)]
    for chunk in chunks_of(compute, request):
        if chunk.index >= 0:
            found[chunk.index].tokens += chunk.tokens
            found[chunk.index].logprobs += chunk.logprobs
            found[chunk.index].reason = chunk.stop_reason
    return found


def chunks_of(compute: Compute, request: SampleRequest) -> Iterator[SampleChunk]:
    compute.join(request, compute.weights(request.weights))
    while not compute.sampling.is_idle:
        for _, event in compute.sampling.step():
            if isinstance(event, Exception):
                raise event
            yield event


def prompt_scores(compute: Compute, ref: BaseRef, prompt: Any) -> np.ndarray[Any, Any]:
    request = SampleRequest(ref, "m", prompt, max_tokens=0, prompt_logprobs=True)
    chunks = list(chunks_of(compute, request))
    assert chunks[0].prompt_logprobs is not None
    return chunks[0].prompt_logprobs


def training_scores(compute: Compute, sequence: list[int]) -> np.ndarray[Any, Any]:
    """Of every token but the first, by `forward`."""
    datum = Datum(np.array(sequence[:-1]), {"target_tokens": np.array(sequence[1:])})
    ((result,),) = (p.values() for p in compute.forward("m", [datum], Loss.cross_entropy, {}))
    return result.logprobs


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # in PEFT
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
def test_greedy_tokens_are_those_of_transformers_on_peft(
    compute: Compute, ref: BaseRef, tmp_path: Path
) -> None:
    weights.write(compute.model("m"), tmp_path, with_optimizer=False)
    base = AutoModelForCausalLM.from_pretrained(ref.path, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, tmp_path / "checkpoints/hf")
    ids = torch.from_numpy(PROMPT)[None]
    expected = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=20,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=2,
    )
    (found,) = sample(compute, ref, temperature=0.0)
    assert found.tokens == expected[0, len(PROMPT) :].tolist()
    assert len(set(found.tokens)) > 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sampled_logprobs_are_those_of_training(
    compute: Compute, ref: BaseRef, temperature: float
) -> None:
    found = sample(compute, ref, temperature=temperature, n=3, seed=5, top_k=50, top_p=0.9)
    for each in found:
        expected = training_scores(compute, [*PROMPT.tolist(), *each.tokens])
        np.testing.assert_allclose(each.logprobs, expected[len(PROMPT) - 1 :], atol=1e-4)


def test_prompt_logprobs_are_those_of_training(compute: Compute, ref: BaseRef) -> None:
    scores = prompt_scores(compute, ref, PROMPT)  # prefilled in three pieces
    assert np.isnan(scores[0])
    np.testing.assert_allclose(scores[1:], training_scores(compute, PROMPT.tolist()), atol=1e-4)
    assert np.isnan(prompt_scores(compute, ref, PROMPT[:1])).tolist() == [True]


def test_a_temperature_divides_the_logits(compute: Compute, ref: BaseRef) -> None:
    (found,) = sample(compute, ref, temperature=0.5, max_tokens=1, seed=3)
    (plain,) = sample(compute, ref, temperature=0.0, max_tokens=1)
    base = compute.model("m").base
    with torch.no_grad(), base.slot.using(compute.weights("m")):
        logits = base.logits(
            base.hidden(
                torch.from_numpy(PROMPT), torch.arange(len(PROMPT)), Sequences([len(PROMPT)])
            )
        )[-1]
    expected = (logits / 0.5).log_softmax(-1)[found.tokens[0]]
    assert found.logprobs[0] == pytest.approx(float(expected), abs=1e-4)
    assert plain.logprobs[0] == pytest.approx(float(logits.log_softmax(-1).max()), abs=1e-4)


@pytest.mark.parametrize("settings", [{"temperature": 5e-324}, {"top_p": 1e-46}])
def test_the_smallest_numbers_choose_the_likeliest_token(
    compute: Compute, ref: BaseRef, settings: dict[str, float]
) -> None:
    (greedy,) = sample(compute, ref, temperature=0.0)
    for found in sample(compute, ref, n=2, **settings):
        assert found.tokens == greedy.tokens
        assert np.isfinite(found.logprobs).all()


def test_the_seed_decides_the_tokens_and_every_sample_has_its_own(
    compute: Compute, ref: BaseRef
) -> None:
    one, same, other = (sample(compute, ref, n=3, seed=seed) for seed in (4, 4, 5))
    assert one == same
    assert [each.tokens for each in one] != [each.tokens for each in other]
    assert len({tuple(each.tokens) for each in one}) == 3
    assert sample(compute, ref) != sample(compute, ref)  # without a seed


def test_samples_follow_the_distribution(compute: Compute, ref: BaseRef) -> None:
    drawn = [each.tokens[0] for each in sample(compute, ref, n=1000, max_tokens=1, seed=1)]
    (top,) = sample(compute, ref, temperature=0.0, max_tokens=1)
    expected = np.exp(top.logprobs[0])
    spread = 4 * np.sqrt(expected * (1 - expected) / 1000)
    assert abs(drawn.count(top.tokens[0]) / 1000 - expected) < spread


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"top_k": 2}, [True, True, False, False]),
        ({"top_p": 0.45}, [True, True, False, False]),
        ({"top_p": 0.3}, [True, False, False, False]),
        ({"top_p": 0.71}, [True, True, True, False]),
        ({"top_p": 1e-9}, [True, False, False, False]),
        ({"top_p": 1e-46}, [True, False, False, False]),
        ({"top_k": 2, "top_p": 0.6}, [True, True, False, False]),
        ({"top_k": 9}, [True, True, True, True]),
    ],
)
def test_top_k_and_top_p_keep_the_likely_tokens(
    ref: BaseRef, settings: Mapping[str, Any], kept: list[bool]
) -> None:
    logprobs = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    request = replace(SampleRequest(ref, None, PROMPT, max_tokens=1), **settings)
    assert torch.isfinite(filter_logprobs(logprobs, request))[0].tolist() == kept


def test_stop_ids_end_only_the_sample_that_draws_them(compute: Compute, ref: BaseRef) -> None:
    free = sample(compute, ref, n=3, seed=8)
    stop = free[1].tokens[4]
    found = sample(compute, ref, n=3, seed=8, stop_ids=(stop,))
    for before, after in zip(free, found, strict=True):
        cut = before.tokens.index(stop) + 1 if stop in before.tokens else 20
        assert after.tokens == before.tokens[:cut]
        assert after.reason == ("stop" if stop in before.tokens else "length")


def test_the_models_own_end_ids_stop_by_default(
    compute: Compute, ref: BaseRef, tmp_path: Path
) -> None:
    (free,) = sample(compute, ref, weights=None, temperature=0.0)
    copy = shutil.copytree(ref.path, tmp_path / "copy")
    ends = {"eos_token_id": [2, free.tokens[3]]}
    (copy / "generation_config.json").write_text(json.dumps(ends))
    other = BaseRef("copy", "copy", copy)
    (found,) = sample(compute, other, weights=None, temperature=0.0, stop_ids=None)
    assert found.tokens == free.tokens[: free.tokens.index(free.tokens[3]) + 1]
    assert found.reason == "stop"


def test_a_stop_string_may_span_tokens(compute: Compute, ref: BaseRef, base: BaseModel) -> None:
    (free,) = sample(compute, ref, seed=11)
    parts = [base.tokenizer.decode([token]) for token in free.tokens]
    start = next(i for i in range(2, 18) if all(p.isascii() for p in parts[i : i + 2]))
    stop = parts[start][-1] + parts[start + 1][0]
    text = ""
    cut = next(i for i, part in enumerate(parts) if stop in (text := text + part))
    (found,) = sample(compute, ref, seed=11, stop_strings=("never in it", stop))
    assert found.tokens == free.tokens[: cut + 1]
    assert found.reason == "stop"


def test_half_a_character_is_no_stop_string(base: BaseModel) -> None:
    def tokens(text: str) -> list[int]:
        return list(base.tokenizer.encode(text, add_special_tokens=False).ids)

    def stops(text: list[int], stop: str = "\ufffd") -> bool:
        return _has_stop_string(base, text, (stop,))

    tower, letter = tokens("🗼"), tokens("x")
    assert len(tower) == 4  # a byte each
    assert not any(stops(letter * 8 + tower[:length]) for length in range(5))
    assert not any(stops(tower * 3 + letter * length) for length in range(12))
    assert stops(letter + tower[:2] + letter)  # it never became a character
    assert stops(letter + tower + letter, stop="🗼x")
    assert stops(tokens("x\ufffdx"))


def test_a_stop_string_may_be_longer_than_the_text(compute: Compute, ref: BaseRef) -> None:
    (found,) = sample(compute, ref, max_tokens=2, stop_strings=("x" * 300,))
    assert found.reason == "length"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompt": PROMPT[:0]}, "the prompt is empty"),
        ({"prompt": np.array([5, 999])}, r"prompt\[1\] is 999, outside the vocabulary of 384"),
        (
            {"max_tokens": 473},
            "a prompt of 40 tokens with max_tokens 473 is over the context of 512",
        ),
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"n": 0}, "n is 0"),
        ({"n": 1025}, "n is 1025"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"stop_strings": ("",)}, "stop_strings is"),
    ],
)
def test_a_request_that_cannot_be_computed_is_refused(
    compute: Compute, ref: BaseRef, settings: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        sample(compute, ref, **settings)


def test_the_whole_context_can_be_filled(compute: Compute, ref: BaseRef) -> None:
    prompt = np.resize(PROMPT, 510)
    (found,) = sample(compute, ref, prompt=prompt, max_tokens=2)
    assert len(found.tokens) == 2


def test_weights_that_diverged_are_named(compute: Compute, ref: BaseRef, tmp_path: Path) -> None:
    weights.write(compute.model("m"), tmp_path, with_optimizer=False)
    path = tmp_path / "checkpoints/hf/adapter_model.safetensors"
    save_file({name: each * math.inf for name, each in load_file(path).items()}, path)
    compute.load_adapter("diverged", ref, path.parent)
    with pytest.raises(EngineError, match="its weights have diverged"):
        sample(compute, ref, weights="diverged")
