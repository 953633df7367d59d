"""Each loss against its formula and the derivative of it, worked out by hand in float64."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from session.engine.compute.losses import FORMULAS, complete_config
from session.engine.port import EngineError, Loss

Doubles = npt.NDArray[np.float64]
L = np.array([-0.1, -2.0, -1.0, -3.0, -0.5, -1.5])
Q = np.array([-0.9, -1.0, -1.1, -1.0, -0.5, -4.0])
A = np.array([1.0, 1.0, -2.0, -1.0, 0.0, -0.7])
W = np.array([1.0, 0.5, 1.0, -1.0, 2.0, 1.0])
R = np.exp(L - Q)
BETA = 0.3


def by_hand(loss: Loss, low: float, high: float) -> tuple[Doubles, Doubles]:
    """Terms, and their derivative by the log-probability (dr/dl is r)."""
    clipped = np.clip(R, low, high)
    match loss:
        case Loss.cross_entropy:
            return -W * L, -W
        case Loss.importance_sampling:
            return -W * R * A, -W * R * A
        case Loss.ppo:
            plain, bounded = R * A, clipped * A
            slopes = np.where(plain <= bounded, -W * plain, 0.0)
            return -W * np.minimum(plain, bounded), slopes
        case Loss.cispo:
            return -W * clipped * A * L, -W * clipped * A
        case Loss.dro:
            return -W * (A * L - BETA / 2 * (L - Q) ** 2), -W * (A - BETA * (L - Q))


def config_of(loss: Loss) -> dict[str, float]:
    return {"beta": BETA} if loss is Loss.dro else {}


def columns() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    logprobs, recorded, advantages, weights = (torch.tensor(x)[:, None] for x in (L, Q, A, W))
    return logprobs, {"logprobs": recorded, "advantages": advantages, "weights": weights}


@pytest.mark.parametrize(
    ("loss", "low", "high"),
    [
        (Loss.cross_entropy, 0, 0),
        (Loss.importance_sampling, 0, 0),
        (Loss.ppo, 0.8, 1.2),
        (Loss.cispo, 0.0, 4.0),
        (Loss.dro, 0, 0),
    ],
)
def test_a_loss_is_its_formula_with_the_default_bounds(loss: Loss, low: float, high: float) -> None:
    terms, slopes = by_hand(loss, low, high)
    column = {
        key: torch.tensor(value)[:, None] for key, value in zip("lqaw", (L, Q, A, W), strict=True)
    }
    logprobs = column["l"].requires_grad_()
    inputs = {"weights": column["w"], "logprobs": column["q"], "advantages": column["a"]}
    found = FORMULAS[loss].terms(logprobs, inputs, complete_config(loss, config_of(loss)))
    (gradient,) = torch.autograd.grad(found.sum(), logprobs)
    np.testing.assert_allclose(found.detach().numpy()[:, 0], terms, rtol=1e-12)
    np.testing.assert_allclose(gradient.numpy()[:, 0], slopes, rtol=1e-12)


@pytest.mark.parametrize("loss", [Loss.ppo, Loss.cispo])
def test_bounds_of_the_ratio_are_configured(loss: Loss) -> None:
    config = complete_config(loss, {"clip_low_threshold": 0.5, "clip_high_threshold": 2.0})
    found = FORMULAS[loss].terms(*columns(), config)
    np.testing.assert_allclose(found.numpy()[:, 0], by_hand(loss, 0.5, 2.0)[0], rtol=1e-12)


@pytest.mark.parametrize("loss", [Loss.importance_sampling, Loss.ppo, Loss.cispo, Loss.dro])
def test_ratios_that_overflow_have_the_slopes_of_their_formula(loss: Loss) -> None:
    """Against float64, which holds what float32 does not: clipped, of weight 0, of advantage 0."""
    clips = loss in (Loss.ppo, Loss.cispo)
    recorded = [-200.0, -200.0, -200.0, -1.0, -0.9] if clips else [-1.5, -200.0, -1.0, -1.0, -0.9]
    columns = {
        "logprobs": recorded,
        "advantages": [1.0, -1.0, 0.0, 1.0, -2.0],
        "weights": [1.5, 0.0, 1.0, 1.0, -0.5],
    }
    found = []
    for dtype in (torch.float64, torch.float32):
        inputs = {key: torch.tensor(each, dtype=dtype)[:, None] for key, each in columns.items()}
        logprobs = torch.tensor([-1.0, -2.0, -1.0, -3.0, -0.5], dtype=dtype)[:, None]
        logprobs.requires_grad_()
        terms = FORMULAS[loss].terms(logprobs, inputs, complete_config(loss, config_of(loss)))
        found.append((terms.detach(), *torch.autograd.grad(terms.sum(), logprobs)))
    for exact, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-6)
        assert ours[1] == 0  # whatever float64 makes of it


def test_a_ratio_that_overflows_is_clipped_without_a_slope() -> None:
    logprobs = torch.tensor([[-1.0]], requires_grad=True)
    inputs = {
        "logprobs": torch.tensor([[-200.0]]),
        "advantages": torch.tensor([[3.0]]),
        "weights": torch.tensor([[0.5]]),
    }
    terms = FORMULAS[Loss.ppo].terms(logprobs, inputs, complete_config(Loss.ppo, {}))
    (slope,) = torch.autograd.grad(terms.sum(), logprobs)
    assert terms.item() == pytest.approx(-0.5 * 1.2 * 3.0)
    assert slope.item() == 0


@pytest.mark.parametrize("beta", ["x", None, 10**400], ids=["text", "none", "huge"])
def test_a_configuration_that_is_no_number_is_named(beta: Any) -> None:
    with pytest.raises(EngineError, match=r"config: beta is .*, not a finite number"):
        complete_config(Loss.dro, {"beta": beta})


def test_a_key_that_the_loss_does_not_have_is_refused() -> None:
    with pytest.raises(EngineError, match=r"ppo has no 'epsilon'.*clip_low_threshold"):
        complete_config(Loss.ppo, {"epsilon": 0.2})
    with pytest.raises(EngineError, match="cross_entropy has no 'clip_low_threshold'"):
        complete_config(Loss.cross_entropy, {"clip_low_threshold": 0.2})


def test_bounds_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(EngineError, match=r"clip_low_threshold 1\.5 is above"):
        complete_config(Loss.ppo, {"clip_low_threshold": 1.5})
    with pytest.raises(EngineError, match="clip_high_threshold is nan"):
        complete_config(Loss.ppo, {"clip_high_threshold": float("nan")})


def test_beta_has_no_default_and_is_not_negative() -> None:
    with pytest.raises(EngineError, match="config: beta is missing: dro needs it"):
        complete_config(Loss.dro, {})
    with pytest.raises(EngineError, match=r"beta is -1\.0, below zero"):
        complete_config(Loss.dro, {"beta": -1.0})
