"""Requests that run together: each gets what it would get alone, and leaves nothing behind."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from torch import Tensor

from session.engine.compute import keys, prompts, running, weights
from session.engine.compute.drawing import Drawn
from session.engine.compute.engine import Compute
from session.engine.compute.large_pages import large_zeros
from session.engine.compute.model import BaseModel
from session.engine.compute.sampler import Sample, Ticket, accept
from session.engine.port import BaseRef, EngineError, Loss, SampleChunk, SampleRequest
from support.sampling import Got, join, run
from support.tiny import ADAM, LORA, tiny_datum

ADAPTERS = {"a": LORA, "b": replace(LORA, rank=1), "c": replace(LORA, rank=64, targets=("o_proj",))}
PROMPTS = {length: tiny_datum(length, seed=length).tokens for length in (3, 40, 61, 130)}
LONG = tiny_datum(250).tokens
TOKEN_BYTES = 2 * 2 * 2 * 12 * 4  # key and value, layers, key heads, values a head, float32


@pytest.fixture
def compute(trained: Compute) -> Iterator[Compute]:
    yield trained
    trained.sampling.memory.drop_idle()
    assert trained.sampling.memory.reserved == 0  # whatever a test did


@pytest.fixture(scope="module")
def trained(ref: BaseRef) -> Compute:
    """Adapters of several ranks, trained so far that they differ."""
    compute = Compute(micro_batch_tokens=32, cache_bytes=400 * 1024)
    for name, lora in ADAPTERS.items():
        compute.create_model(name, ref, lora)
        data = [tiny_datum(20, seed=ord(name))]
        list(compute.forward_backward(name, data, Loss.cross_entropy, {}))
        compute.optim_step(name, replace(ADAM, learning_rate=5e-2))
    return compute


def ask(ref: BaseRef, length: int = 40, /, **settings: Any) -> SampleRequest:
    given = {"weights": "a", "max_tokens": 30, "stop_ids": (), "temperature": 0.0, **settings}
    prompt = given.pop("prompt", PROMPTS.get(length))
    return SampleRequest(ref, prompt=prompt, **given)


def assert_same(one: Got, other: Got) -> None:
    assert one.tokens == other.tokens
    for index, logprobs in one.logprobs.items():
        np.testing.assert_allclose(logprobs, other.logprobs[index], atol=1e-5)


def mixed(ref: BaseRef) -> list[SampleRequest]:
    weights = ["a", None, "b", "c", "a", "b", None]
    lengths = [3, 40, 61, 130, 61, 3, 130]
    return [
        ask(ref, length, weights=name, temperature=n % 2, seed=n, max_tokens=20 + 15 * n)
        for n, (name, length) in enumerate(zip(weights, lengths, strict=True))
    ]


def test_adapters_and_the_base_in_one_batch_give_what_each_gives_alone(
    compute: Compute, ref: BaseRef
) -> None:
    together = run(compute, *mixed(ref))
    for request, found in zip(mixed(ref), together, strict=True):
        (alone,) = run(compute, replace(request, deterministic=True))
        assert_same(found, alone)
        assert len(found.tokens[0]) == request.max_tokens


def test_who_joins_late_and_who_leaves_early_changes_no_other(
    compute: Compute, ref: BaseRef
) -> None:
    first, *others = mixed(ref)
    gone = [join(compute, each) for each in others]
    kept = {join(compute, first): Got()}
    while not compute.sampling.is_idle:
        for ticket, event in compute.sampling.step():
            kept.setdefault(ticket, Got()).take(event)
        if gone:
            compute.sampling.leave(gone.pop(0))
            join(compute, ask(ref, 61, weights="c", max_tokens=3))
    stayed = next(iter(kept.values()))
    (alone,) = run(compute, replace(first, deterministic=True))
    assert_same(stayed, alone)


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "seed": 3}])
def test_samples_of_a_long_prompt_read_it_together_and_differ_in_nothing(
    compute: Compute, ref: BaseRef, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ask(ref, prompt=LONG, n=16, max_tokens=70, **settings)
    compute.sampling.memory.budget, before = 10**9, compute.sampling.memory.budget
    (shared,) = run(compute, request)
    monkeypatch.setattr(prompts, "SHARED_FROM", 10**9)
    (copied,) = run(compute, request)
    compute.sampling.memory.budget = before
    assert_same(shared, copied)
    assert len(shared.tokens) == 16


def test_a_prompt_asked_for_many_times_is_computed_once(compute: Compute, ref: BaseRef) -> None:
    counts = replace(compute.sampling.counts)
    request = ask(ref, 130, n=5, max_tokens=4, temperature=1.0)
    found = run(compute, request, request, late=(request,))
    assert compute.sampling.counts.prefilled - counts.prefilled == 130
    assert [each.cached for each in found] == [0, 130, 130]
    assert compute.sampling.counts.cached - counts.cached == 260


def test_a_later_turn_computes_only_what_is_new(compute: Compute, ref: BaseRef) -> None:
    (first,) = run(compute, ask(ref, 61))
    turn = np.concatenate([PROMPTS[61], first.tokens[0], PROMPTS[3]])
    counts = replace(compute.sampling.counts)
    (second,) = run(compute, ask(ref, prompt=turn))
    known = 61 + 30 - 1  # what was drawn last was never computed
    assert second.cached == known
    assert compute.sampling.counts.prefilled - counts.prefilled == len(turn) - known
    (alone,) = run(compute, ask(ref, prompt=turn, deterministic=True))
    assert_same(second, alone)
    assert alone.cached == 0


@pytest.mark.parametrize("settings", [{"weights": "b"}, {"owner": "another"}])
def test_prompts_are_shared_neither_between_weights_nor_between_owners(
    compute: Compute, ref: BaseRef, settings: dict[str, str]
) -> None:
    run(compute, ask(ref))
    (found,) = run(compute, ask(ref, **settings))
    assert found.cached == 0


def test_a_step_of_training_forgets_the_prompts_of_the_weights_before(
    compute: Compute, ref: BaseRef
) -> None:
    compute.create_model("new", ref, LORA)
    run(compute, ask(ref, weights="new"))
    assert compute.sampling.memory.idle > 0
    list(compute.forward_backward("new", [tiny_datum(9)], Loss.cross_entropy, {}))
    compute.optim_step("new", ADAM)
    (found,) = run(compute, ask(ref, weights="new"))
    assert found.cached == 0
    assert compute.sampling.memory.idle <= 70 * TOKEN_BYTES
    compute.drop("new")


def test_a_deterministic_request_gives_the_same_bits_whatever_else_runs(
    compute: Compute, ref: BaseRef
) -> None:
    request = ask(ref, 130, n=3, temperature=1.0, seed=9, deterministic=True)
    (alone,) = run(compute, request)
    found, *_ = run(compute, request, *mixed(ref), late=(ask(ref, 130), request))
    assert (found.tokens, found.logprobs) == (alone.tokens, alone.logprobs)
    assert found.cached == 0


def test_a_request_that_left_has_no_memory_and_brings_nothing(
    compute: Compute, ref: BaseRef
) -> None:
    tickets = [join(compute, ask(ref, 130, n=n, max_tokens=9)) for n in (1, 3, 2)]
    for _ in range(7):  # the prompt takes five passes
        compute.sampling.step()
    for ticket in tickets:
        compute.sampling.leave(ticket)
    assert compute.sampling.is_idle
    assert compute.sampling.memory.reserved == 0
    assert compute.sampling.step() == []


def test_what_never_fits_is_refused_with_both_sizes(compute: Compute, ref: BaseRef) -> None:
    with pytest.raises(EngineError) as caught:
        join(compute, ask(ref, 130, max_tokens=382, n=2, deterministic=True))
    needed = (130 + 2 * 512) * TOKEN_BYTES
    assert f"needs {needed} bytes" in str(caught.value)
    assert f"has {400 * 1024}" in str(caught.value)


def test_what_does_not_fit_now_waits_its_turn_within_the_budget(
    compute: Compute, ref: BaseRef
) -> None:
    requests = [ask(ref, 61, prompt=PROMPTS[61] + n, n=2, max_tokens=120 + n) for n in range(4)]
    order = [join(compute, each) for each in requests]
    ended = []
    while not compute.sampling.is_idle:
        for ticket, event in compute.sampling.step():
            assert isinstance(event, SampleChunk)
            ended += [ticket] if event.stop_reason else []
        memory = compute.sampling.memory
        assert memory.reserved + memory.idle <= memory.budget
    assert (len(set(ended)), ended[-1]) == (4, order[-1])


def test_a_short_prompt_does_not_wait_for_a_long_one(compute: Compute, ref: BaseRef) -> None:
    long, short = join(compute, ask(ref, prompt=LONG, max_tokens=1)), join(compute, ask(ref, 3))
    first: list[Ticket] = []
    while not compute.sampling.is_idle:
        first += [ticket for ticket, _ in compute.sampling.step()]
    assert first[0] is short
    assert long in first


def test_logprobs_of_a_prompt_are_computed_beside_others(compute: Compute, ref: BaseRef) -> None:
    scoring = ask(ref, 130, max_tokens=0, prompt_logprobs=True)
    scores: list[npt.NDArray[np.float32]] = []
    for others in ((), mixed(ref)):
        tickets = [join(compute, each) for each in (scoring, *others)]
        while not compute.sampling.is_idle:
            for ticket, event in compute.sampling.step():
                if ticket is tickets[0] and isinstance(event, SampleChunk) and event.index < 0:
                    assert event.prompt_logprobs is not None
                    scores.append(event.prompt_logprobs)
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_k": 1.5}, "top_k is 1.5"),
        ({"n": 1.5}, "n is 1.5"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"max_tokens": 2.5}, "max_tokens is 2.5"),
        ({"temperature": "x"}, "temperature is 'x'"),
        ({"stop_ids": 5}, "stop_ids is 5"),
        ({"stop_ids": (1.5,)}, r"stop_ids is \(1.5,\)"),
        ({"stop_strings": "ab"}, "stop_strings is 'ab'"),
        ({"stop_strings": (3,)}, r"stop_strings is \(3,\)"),
        ({"stop_strings": ("\ud800",)}, r"stop_strings is \('\\ud800',\)"),
    ],
)
def test_a_setting_of_another_type_is_refused_before_it_joins(
    compute: Compute, ref: BaseRef, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(EngineError, match=f"^{message}, which sampling cannot use"):
        join(compute, ask(ref, **settings))
    assert compute.sampling.is_idle


@pytest.mark.parametrize("kind", ["model", "adapter"])
def test_weights_of_another_base_are_refused_by_name(
    ref: BaseRef, untied: BaseRef, tmp_path: Path, kind: str
) -> None:
    compute = Compute(micro_batch_tokens=32)
    compute.create_model("model", ref, replace(LORA, targets=("q_proj",)))
    weights.write(compute.model("model"), tmp_path, with_optimizer=False)
    compute.load_adapter("adapter", ref, tmp_path / "checkpoints/hf")
    with pytest.raises(EngineError, match=f"weights '{kind}' are of base 'tiny/True' .*tiny/False"):
        join(compute, ask(untied, weights=kind))
    (found,) = run(compute, ask(ref, weights=kind))
    assert found.error is None


def test_what_breaks_one_request_is_no_other_ones(
    compute: Compute, ref: BaseRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(base: BaseModel, sample: Sample, drawn: Drawn) -> SampleChunk:
        if sample.ticket.request.owner == "unlucky" and len(sample.tokens) == 2:
            raise ValueError("as no check foresaw")
        return accept(base, sample, drawn)

    (alone,) = run(compute, ask(ref))
    monkeypatch.setattr(running, "accept", broken)
    failed, found = run(compute, ask(ref, owner="unlucky"), ask(ref))
    assert repr(failed.error) == "ValueError('as no check foresaw')"
    assert found.error is None
    assert_same(found, alone)


def crowd(ref: BaseRef) -> list[SampleRequest]:
    """Groups of their own, one that grows, one that moves to more room, one that reads together."""
    return [
        *(ask(ref, prompt=LONG[: 4 + n], max_tokens=12, owner="few") for n in range(2)),
        ask(ref, prompt=LONG, max_tokens=20),
        ask(ref, prompt=LONG[:90], max_tokens=6, n=5),
        ask(ref, prompt=LONG[:3], max_tokens=0, prompt_logprobs=True),
    ]


class Shortage:
    """Memory for keys and values that runs out at the n-th time."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0

    def __call__(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        self.count += 1
        if self.count == self.at:
            raise MemoryError
        return large_zeros(shape, like)


def test_memory_that_runs_out_while_a_sample_is_placed_leaves_nothing_behind(
    compute: Compute, ref: BaseRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute.sampling.memory.budget, before = 10**9, compute.sampling.memory.budget
    never = Shortage(0)
    monkeypatch.setattr(keys, "large_zeros", never)
    expected = run(compute, *crowd(ref))
    assert never.count > 4
    for at in range(1, never.count + 1):
        compute.sampling.memory.drop_idle()
        monkeypatch.setattr(keys, "large_zeros", Shortage(at))
        broken = run(compute, *crowd(ref))
        errors = {str(each.error) for each in broken if each.error is not None}
        assert errors == {"out of memory while sampling"}
        ended = [each.error is not None or bool(each.reasons) for each in broken]
        assert all(ended)  # nobody waits for ever
        assert compute.sampling.memory.reserved == 0
        for one, other in zip(run(compute, *crowd(ref)), expected, strict=True):
            assert one.error is None
            assert_same(one, other)
    compute.sampling.memory.budget = before


def test_who_waits_for_memory_is_not_overtaken_by_who_comes_later_elsewhere(
    compute: Compute, ref: BaseRef
) -> None:
    compute.sampling.memory.budget, before = (
        (4 * 256 + 100) * TOKEN_BYTES,
        (compute.sampling.memory.budget),
    )
    for number in range(4):
        join(compute, ask(ref, prompt=LONG[number : number + 3], max_tokens=20 + 10 * number))
    compute.sampling.step()  # their memory leaves no room for three more samples
    waits = join(compute, ask(ref, 3, n=3, max_tokens=10, deterministic=True))
    later = {join(compute, ask(ref, prompt=LONG[n : n + 3], max_tokens=40)) for n in range(9, 30)}
    ended = []
    while not compute.sampling.is_idle:
        for ticket, event in compute.sampling.step():
            assert isinstance(event, SampleChunk)
            ended += [ticket] if event.stop_reason else []
    compute.sampling.memory.budget = before
    assert len(later.intersection(ended)) == 21
    assert not later.intersection(ended[: ended.index(waits)])
