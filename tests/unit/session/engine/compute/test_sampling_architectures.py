"""Sampling from every architecture says what transformers says of the same tokens: windows, sinks
and caps in slots, in shared prompts and in pieces of prompts."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from session.engine.compute import prompts
from session.engine.compute.engine import Compute
from session.engine.port import BaseRef, SampleChunk, SampleRequest
from support.architectures import SUPPORTED, write_architecture

PROMPT = np.random.default_rng(0).integers(3, 128, 24)
NEW = 12


def sampled(ref: BaseRef) -> list[tuple[list[int], list[float]]]:
    """Three samples of one prompt beside one of another."""
    compute = Compute(micro_batch_tokens=16)
    request = SampleRequest(ref, None, PROMPT, max_tokens=NEW, n=3, seed=1, stop_ids=())
    ticket = compute.join(request, None)
    compute.join(replace(request, prompt=PROMPT[:5], n=1), None)
    found: list[tuple[list[int], list[float]]] = [([], []) for _ in range(3)]
    while not compute.sampling.is_idle:
        for owner, event in compute.sampling.step():
            assert isinstance(event, SampleChunk)
            if owner is ticket:
                found[event.index][0].extend(event.tokens)
                found[event.index][1].extend(event.logprobs)
    return found


@pytest.mark.parametrize("shared_from", [1, 10**9])
@pytest.mark.parametrize("name", [*SUPPORTED, "gemma2"])
def test_sampled_logprobs_are_those_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, shared_from: int
) -> None:
    monkeypatch.setattr(prompts, "SHARED_FROM", shared_from)
    ref = write_architecture(name, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(ref.path, attn_implementation="eager")
    for tokens, logprobs in sampled(ref):
        whole = torch.tensor([*PROMPT.tolist(), *tokens])
        with torch.no_grad():
            expected = model(whole[None, :-1]).logits[0].log_softmax(-1)
        expected = expected.gather(-1, whole[1:, None])[len(PROMPT) - 1 :, 0]
        np.testing.assert_allclose(logprobs, expected.numpy(), atol=1e-4)
