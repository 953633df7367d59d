"""Requests of two accounts in one batch: nothing of the one reaches the other."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from session.engine.compute.engine import Compute
from session.engine.compute.sampler import Ticket
from session.engine.port import BaseRef, EngineError, SampleRequest
from support.architectures import write_architecture
from support.sampling import Got, join, run
from support.tiny import LORA


@pytest.fixture
def compute(ref: BaseRef) -> Iterator[Compute]:
    compute = Compute(micro_batch_tokens=32, cache_bytes=10**9)
    compute.create_model("hers", ref, LORA)
    yield compute
    assert compute.sampling.memory.reserved == 0


def ask(ref: BaseRef, owner: str, length: int, **settings: Any) -> SampleRequest:
    given = {"weights": None, "max_tokens": 40, "stop_ids": (), "temperature": 0.0, **settings}
    prompt = np.random.default_rng(length).integers(3, 128, length)
    return SampleRequest(ref, prompt=prompt, owner=owner, **given)


def steps(compute: Compute, found: dict[Ticket, Got], count: int) -> None:
    for _ in range(count):
        for ticket, event in compute.sampling.step():
            found[ticket].take(event)


@pytest.mark.parametrize("length", [40, 300], ids=["running beside it", "read together"])
@pytest.mark.parametrize("settings", [{}, {"n": 2}], ids=["one", "two"])
def test_a_prompt_in_use_or_left_behind_is_no_other_accounts(
    compute: Compute, ref: BaseRef, length: int, settings: dict[str, int]
) -> None:
    hers = ask(ref, "alice", length, **settings)
    together = run(compute, hers, late=(replace(hers, owner="bob"), hers))
    assert [each.cached for each in together] == [0, 0, length]
    (later,) = run(compute, replace(hers, owner="carol"))
    assert later.cached == 0


def test_what_an_account_sampled_is_no_beginning_of_anothers_prompt(
    compute: Compute, ref: BaseRef
) -> None:
    hers = ask(ref, "alice", 40)
    (said,) = run(compute, hers)
    turn = replace(hers, prompt=np.concatenate([hers.prompt, said.tokens[0]]))
    his, again = run(compute, replace(turn, owner="bob"), turn)
    assert (his.cached, again.cached) == (0, 40 + 40 - 1)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "qwen3_moe"])
def test_weights_that_diverge_break_no_request_beside_them_or_in_their_place(
    tmp_path: Path, name: str
) -> None:
    """What is hidden weighs nothing, but nothing times NaN is NaN: it must not stay in a place."""
    ref = write_architecture(name, tmp_path)
    compute = Compute(micro_batch_tokens=32, cache_bytes=10**9)
    compute.create_model("hers", ref, replace(LORA, targets=("q_proj", "k_proj", "v_proj")))
    beside, after = ask(ref, "bob", 20, max_tokens=40), ask(ref, "bob", 10, max_tokens=20)
    first = join(compute, beside)
    hers = join(compute, ask(ref, "alice", 21, weights="hers", max_tokens=40))
    found = {first: Got(), hers: Got()}
    steps(compute, found, 10)
    for tensor in compute.model("hers").adapter.tensors.values():
        tensor.fill_(torch.inf)
    while found[hers].error is None:
        steps(compute, found, 1)
    second, third = join(compute, after), join(compute, ask(ref, "alice", 9, weights="hers"))
    found |= {second: Got(), third: Got()}
    while not compute.sampling.is_idle:
        steps(compute, found, 1)
    assert isinstance(found[third].error, EngineError)
    for ticket, request in ((first, beside), (second, after)):
        (alone,) = run(compute, replace(request, deterministic=True))
        assert found[ticket].error is None
        assert found[ticket].tokens == alone.tokens
