"""What training promises beside its numbers, which test_golden.py compares."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from session.engine.compute.attention import Sequences
from session.engine.compute.engine import Compute
from session.engine.port import (
    BaseRef,
    Datum,
    EngineError,
    Loss,
    LossOutput,
    NonFiniteGradient,
    PoisonedGradient,
)
from support.golden import finish
from support.plain import config_of
from support.tiny import ADAM, LORA, tiny_datum

LENGTHS = [7, 30, 2, 16, 25, 1]
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")
EVERYTHING = replace(LORA, targets=TARGETS)


def batch(loss: Loss = Loss.cross_entropy) -> list[Datum]:
    return [tiny_datum(length, loss=loss) for length in LENGTHS]


def new_compute(ref: BaseRef, *, micro_batch_tokens: int = 64) -> Compute:
    compute = Compute(micro_batch_tokens=micro_batch_tokens)
    compute.create_model("m", ref, EVERYTHING)
    return compute


def train(
    compute: Compute, data: Sequence[Datum], loss: Loss = Loss.cross_entropy
) -> list[LossOutput]:
    return finish(compute.forward_backward("m", data, loss, config_of(loss)))


def gradient(compute: Compute) -> Tensor:
    found = compute.model("m").gradient
    assert found is not None
    return torch.cat([found[name].flatten() for name in sorted(found)])


@pytest.mark.parametrize("loss", list(Loss))
def test_forward_computes_what_forward_backward_computes(ref: BaseRef, loss: Loss) -> None:
    compute = new_compute(ref)
    train(compute, batch())
    compute.optim_step("m", ADAM)
    seen = finish(compute.forward("m", batch(loss), loss, config_of(loss)))
    again = train(compute, batch(loss), loss)
    assert [each.loss for each in seen] == [each.loss for each in again]
    for one, other in zip(seen, again, strict=True):
        np.testing.assert_array_equal(one.logprobs, other.logprobs)


def test_step_zero_is_the_base_model_bit_for_bit(ref: BaseRef) -> None:
    model = new_compute(ref).model("m")
    tokens = torch.from_numpy(tiny_datum(20).tokens)
    positions, plan = torch.arange(20), Sequences([20])
    plain = model.base.logits(model.base.hidden(tokens, positions, plan))
    with model.base.slot.using(model.adapter):
        adapted = model.base.logits(model.base.hidden(tokens, positions, plan))
    assert torch.equal(adapted, plain)
    theirs = AutoModelForCausalLM.from_pretrained(ref.path, dtype=torch.float32)
    expected = theirs(tokens[None]).logits[0].detach()
    np.testing.assert_allclose(adapted.numpy(), expected.numpy(), rtol=0, atol=1e-5)


def test_soft_targets_weigh_each_of_their_tokens(ref: BaseRef) -> None:
    first, second = tiny_datum(6), tiny_datum(6, seed=1)
    both = {key: np.stack([d.inputs[key] for d in (first, second)], 1) for key in first.inputs}
    compute = new_compute(ref)
    soft, plain = train(compute, [Datum(first.tokens, both), tiny_datum(4)])
    ones = [replace(first, inputs=each.inputs) for each in (first, second)]
    apart = finish(compute.forward("m", ones, Loss.cross_entropy, {}))
    assert soft.loss == pytest.approx(sum(each.loss for each in apart), rel=1e-5)
    expected = np.stack([each.logprobs for each in apart], 1)
    np.testing.assert_allclose(soft.logprobs, expected, atol=1e-5)
    assert plain.logprobs.shape == (4,)


def test_log_probabilities_have_the_shape_of_their_targets_whatever_else_is_in_the_batch(
    ref: BaseRef,
) -> None:
    data = []
    for length, targets in ((5, 2), (7, 5), (3, 1)):
        ids = np.random.default_rng(length).integers(3, 300, (length, targets))
        data.append(Datum(tiny_datum(length).tokens, {"target_tokens": ids}))
    together = train(new_compute(ref), [*data, tiny_datum(6)])
    assert [each.logprobs.shape for each in together] == [(5, 2), (7, 5), (3, 1), (6,)]
    for datum, found in zip(data, together, strict=False):
        (alone,) = train(new_compute(ref), [datum])
        np.testing.assert_allclose(found.logprobs, alone.logprobs, atol=1e-5)


@pytest.mark.parametrize(
    ("loss", "weight", "advantage"),
    [
        (Loss.importance_sampling, 0.0, 1.0),
        (Loss.importance_sampling, 1.0, 0.0),
        (Loss.ppo, 0.0, -1.0),
        (Loss.ppo, 1.0, 0.0),
        (Loss.cispo, 0.0, 1.0),
        (Loss.dro, 0.0, 1.0),
    ],
)
def test_a_token_that_does_not_count_adds_nothing_however_far_its_ratio_is_off(
    ref: BaseRef, loss: Loss, weight: float, advantage: float
) -> None:
    outputs, gradients = [], []
    for recorded in (-6.0, -1e30):
        datum = tiny_datum(6, loss=loss)
        inputs = {key: array.copy() for key, array in datum.inputs.items()}
        inputs["logprobs"][2], inputs["weights"][2] = recorded, weight
        inputs["advantages"][2] = advantage
        compute = new_compute(ref)
        outputs += train(compute, [Datum(datum.tokens, inputs)], loss)
        gradients.append(gradient(compute))
    assert outputs[0].loss == outputs[1].loss
    assert torch.equal(*gradients)


def test_weights_are_one_where_absent_and_never_normalised(ref: BaseRef) -> None:
    datum = tiny_datum(8)
    targets = datum.inputs["target_tokens"]
    given = [None, np.ones(8), np.full(8, -0.5), np.zeros(8)]
    data = [
        Datum(datum.tokens, {"target_tokens": targets} | ({} if w is None else {"weights": w}))
        for w in given
    ]
    results = train(new_compute(ref, micro_batch_tokens=8), data)
    none, one, half, zero = (each.loss for each in results)
    assert (one, zero) == (none, 0.0)
    assert half == pytest.approx(-0.5 * none, rel=1e-6)


def test_models_on_one_base_do_not_touch_each_other(ref: BaseRef) -> None:
    both, alone = new_compute(ref), new_compute(ref)
    both.create_model("other", ref, replace(EVERYTHING, seed=9))
    work = both.forward_backward("m", batch(), Loss.cross_entropy, {})
    for _ in both.forward_backward("other", batch(), Loss.cross_entropy, {}):
        next(work)  # turn and turn about
    finish(work)
    train(alone, batch())
    assert both.model("m").base is both.model("other").base
    assert torch.equal(gradient(both), gradient(alone))


def test_a_gradient_that_is_not_finite_leaves_everything_as_it_was(ref: BaseRef) -> None:
    compute = new_compute(ref)
    before = compute.model("m")
    datum = tiny_datum(5)
    huge = replace(datum, inputs=dict(datum.inputs) | {"weights": np.full(5, 1e35)})
    train(compute, [huge])
    with pytest.raises(NonFiniteGradient):
        compute.optim_step("m", ADAM)
    after = compute.model("m")
    assert after.adapter is before.adapter
    assert after.moments is before.moments
    assert (after.step, after.gradient) == (0, None)


def test_a_loss_that_is_not_finite_names_its_datum(ref: BaseRef) -> None:
    datum = tiny_datum(5, loss=Loss.ppo)
    far = replace(datum, inputs=dict(datum.inputs) | {"logprobs": np.full(5, -1e5)})
    with pytest.raises(EngineError, match="datum 1: the loss is"):
        train(new_compute(ref), [datum, far], Loss.importance_sampling)


def test_a_call_that_ends_halfway_poisons_and_adds_nothing(ref: BaseRef) -> None:
    compute = new_compute(ref)
    work = compute.forward_backward("m", batch(), Loss.cross_entropy, {})
    next(work)
    del work
    assert compute.model("m").gradient is None
    with pytest.raises(PoisonedGradient):
        compute.optim_step("m", ADAM)
    assert not compute.model("m").poisoned


def test_learning_lowers_the_loss(ref: BaseRef) -> None:
    compute = new_compute(ref)
    data = [replace(d, inputs={"target_tokens": d.inputs["target_tokens"]}) for d in batch()]
    losses = []
    for _ in range(12):
        losses.append(sum(each.loss for each in train(compute, data)))
        compute.optim_step("m", replace(ADAM, learning_rate=2e-2))
    assert losses[-1] < 0.5 * losses[0]
