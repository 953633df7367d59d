"""Requests of two accounts in one batch: nothing of the one reaches the other."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from session.engine.compute.engine import Compute
from session.engine.compute.sampler import Ticket
from session.engine.port import BaseRef, EngineError, SampleRequest
from support.sampling import Got, join, run
from support.tiny import LORA, tiny_datum


@pytest.fixture
def compute(ref: BaseRef) -> Iterator[Compute]:
    compute = Compute(micro_batch_tokens=32, cache_bytes=10**9)
    compute.create_model("hers", ref, LORA)
    yield compute
    assert compute.sampling.memory.reserved == 0


def ask(ref: BaseRef, owner: str, length: int, **settings: Any) -> SampleRequest:
    given = {"weights": None, "max_tokens": 40, "stop_ids": (), "temperature": 0.0, **settings}
    return SampleRequest(ref, prompt=tiny_datum(length, seed=length).tokens, owner=owner, **given)


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


def test_weights_that_diverge_break_no_request_that_comes_into_their_place(
    compute: Compute, ref: BaseRef
) -> None:
    """Keys and values that are not finite stay hidden in a place, and must not stay in it."""
    found = {join(compute, ask(ref, "bob", 40, max_tokens=100)): Got()}
    hers = join(compute, ask(ref, "alice", 41, weights="hers", max_tokens=100))
    found[hers] = Got()
    steps(compute, found, 30)
    for tensor in compute.model("hers").adapter.tensors.values():
        tensor.fill_(torch.inf)
    while found[hers].error is None:
        steps(compute, found, 1)
    request = ask(ref, "bob", 42)
    his = join(compute, request)
    found[his] = Got()
    while not compute.sampling.is_idle:
        steps(compute, found, 1)
    assert isinstance(found[hers].error, EngineError)
    (alone,) = run(compute, replace(request, deterministic=True))
    assert found[his].error is None
    assert found[his].tokens == alone.tokens
