from typing import Any

import numpy as np
import pytest
import torch

from session.client.errors import InvalidInput
from session.client.torch_bridge import Tensor, differentiate

LOGPROBS = [np.array([-1.0, -2.0], np.float32), np.array([-3.0], np.float32)]


def test_the_gradient_is_that_of_the_loss_and_zero_where_unused() -> None:
    def loss(data: Any, logprobs: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
        return (logprobs[0] ** 2).sum(), {"accuracy": torch.tensor(0.5)}  # type: ignore[dict-item]

    value, metrics, gradients = differentiate(loss, ["a", "b"], LOGPROBS)
    assert (value, metrics) == (5.0, {"accuracy": 0.5})
    assert [gradient.tolist() for gradient in gradients] == [[-2.0, -4.0], [0.0]]


@pytest.mark.parametrize("loss", [1.0, torch.tensor(1.0), torch.ones(2, requires_grad=True)])
def test_a_loss_is_one_number_made_of_the_logprobs(loss: Any) -> None:
    with pytest.raises(InvalidInput, match="one number computed from logprobs"):
        differentiate(lambda data, logprobs: (loss, {}), [], LOGPROBS)


def test_a_gradient_that_is_not_finite_names_its_datum() -> None:
    with pytest.raises(InvalidInput, match=r"data\[1\]"):
        differentiate(
            lambda data, logprobs: (logprobs[0].sum() + (logprobs[1] + 3).sqrt().sum(), {}),
            [],
            LOGPROBS,
        )


def test_a_loss_that_exits_reaches_the_caller_as_an_error() -> None:
    def loss(data: Any, logprobs: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
        raise SystemExit(3)

    with pytest.raises(RuntimeError, match="tried to exit: 3"):
        differentiate(loss, [], LOGPROBS)
