"""AdamW against torch's own, and what a step refuses."""

import re
from dataclasses import replace

import pytest
import torch

from session.engine.compute.optim import Moments, adamw_step, check_params
from session.engine.port import AdamParams, EngineError, NonFiniteGradient

PARAMS = AdamParams(
    1e-2, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, grad_clip_norm=1.0, lora_plus_ratio=4.0
)
NAMES = ("x.lora_A.weight", "x.lora_B.weight")


def gradients(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {name: torch.randn(3, 4, generator=generator) / (step + 1) ** 2 for name in NAMES}


def test_steps_are_those_of_torch() -> None:
    theirs = {name: torch.nn.Parameter(torch.full((3, 4), 0.5)) for name in NAMES}
    optimizer = torch.optim.AdamW(
        [{"params": [theirs[NAMES[0]]]}, {"params": [theirs[NAMES[1]]]}],
        betas=(0.9, 0.95),
        eps=1e-8,
        weight_decay=0.1,
    )
    ours = {name: torch.full((3, 4), 0.5) for name in NAMES}
    moments = Moments.fresh(ours)
    for step in range(5):  # the first gradients are clipped, the last are not
        rate = 1e-2 / (step + 1)
        for group, ratio in zip(optimizer.param_groups, (1.0, 4.0), strict=True):
            group["lr"] = rate * ratio
        for name, gradient in gradients(step).items():
            theirs[name].grad = gradient
        norm = torch.nn.utils.clip_grad_norm_(theirs.values(), 1.0)
        optimizer.step()
        params = replace(PARAMS, learning_rate=rate)
        ours, moments, found = adamw_step(ours, gradients(step), moments, params)
        assert found == pytest.approx(float(norm), rel=1e-6)
    for name in NAMES:
        torch.testing.assert_close(ours[name], theirs[name].detach(), rtol=1e-6, atol=1e-7)


def test_a_step_leaves_the_old_tensors_alone() -> None:
    weights = {name: torch.ones(3, 4) for name in NAMES}
    moments = Moments.fresh(weights)
    adamw_step(weights, gradients(0), moments, PARAMS)
    assert all(torch.equal(each, torch.ones(3, 4)) for each in weights.values())
    assert all(not each.any() for each in moments.exp_avg.values())


@pytest.mark.parametrize("clip", [None, 0.0])
def test_no_clipping_without_a_norm(clip: float | None) -> None:
    weights = {name: torch.zeros(3, 4) for name in NAMES}
    params = replace(PARAMS, grad_clip_norm=clip)
    _, moments, _ = adamw_step(weights, gradients(0), Moments.fresh(weights), params)
    torch.testing.assert_close(moments.exp_avg[NAMES[0]], gradients(0)[NAMES[0]] * 0.1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_norm_that_is_not_finite_is_refused(bad: float) -> None:
    weights = {name: torch.zeros(3, 4) for name in NAMES}
    wrong = {name: torch.full((3, 4), bad) for name in NAMES}
    with pytest.raises(NonFiniteGradient, match=r"the gradient norm is (nan|inf)"):
        adamw_step(weights, wrong, Moments.fresh(weights), PARAMS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", -1.0),
        ("learning_rate", 1e38),
        ("learning_rate", float("nan")),
        ("beta1", 1.0),
        ("beta2", -0.1),
        ("eps", 0.0),
        ("eps", 1e-46),  # 0 in float32
        ("weight_decay", float("inf")),
        ("grad_clip_norm", -1.0),
        ("lora_plus_ratio", 0.0),
    ],
)
def test_a_parameter_out_of_range_is_named(name: str, value: float) -> None:
    with pytest.raises(EngineError, match=rf"{name} is {re.escape(str(value))}"):
        check_params(replace(PARAMS, **{name: value}), torch.float32)


def test_eps_may_be_as_small_as_the_type_of_the_weights_allows() -> None:
    check_params(replace(PARAMS, eps=1e-46), torch.float64)


def large(value: float) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    weights = {name: torch.zeros(3, 4) for name in NAMES}
    return weights, {name: torch.full((3, 4), value) for name in NAMES}


def test_a_large_gradient_that_is_clipped_is_as_good_as_any() -> None:
    weights, gradient = large(1e30)
    after, _, norm = adamw_step(weights, gradient, Moments.fresh(weights), PARAMS)
    assert norm == pytest.approx(1e30 * 24**0.5, rel=1e-6)
    _, ones = large(1.0)
    expected, _, _ = adamw_step(weights, ones, Moments.fresh(weights), PARAMS)
    for name in NAMES:
        torch.testing.assert_close(after[name], expected[name])


def test_a_large_gradient_without_clipping_is_refused_for_what_it_is() -> None:
    weights, gradient = large(1e30)
    with pytest.raises(NonFiniteGradient, match=r"is 4\.89898e\+30, too large for its square"):
        adamw_step(weights, gradient, Moments.fresh(weights), replace(PARAMS, grad_clip_norm=None))
