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


LOSS = torch.tensor(1.0, requires_grad=True)


@pytest.mark.parametrize(
    ("returned", "fault"),
    [
        (None, "returned None"),
        (LOSS, "returned of type Tensor"),
        ((LOSS, {}, 1), "a tuple of 3"),
        ((1.0, {}), "its loss is of type float"),
        ((torch.tensor(1.0), {}), "does not depend on logprobs"),
        ((torch.ones(2, requires_grad=True), {}), r"shape \[2\]"),
        ((LOSS, None), "its metrics are None"),
        ((LOSS, {"b": "x"}), r"metrics\['b'\] must be a number"),
        ((LOSS, {"b": 10**400}), r"metrics\['b'\] must be a number"),
        ((LOSS, {1: 2.0}), "a key of metrics"),
    ],
)
def test_a_loss_that_returns_something_else_is_told_what_to_return(
    returned: Any, fault: str
) -> None:
    with pytest.raises(InvalidInput, match=rf"must return \(loss, metrics\): .*{fault}"):
        differentiate(lambda data, logprobs: returned, [], LOGPROBS)


def test_a_loss_may_empty_the_lists_it_is_given() -> None:
    def loss(data: Any, logprobs: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
        data.pop()
        return logprobs.pop().sum(), {}

    data = ["a", "b"]
    _, _, gradients = differentiate(loss, data, LOGPROBS)
    assert [gradient.tolist() for gradient in gradients] == [[0.0, 0.0], [1.0]]
    assert data == ["a", "b"]


def test_a_gradient_that_is_not_finite_names_its_datum() -> None:
    with pytest.raises(InvalidInput, match=r"data\[1\]"):
        differentiate(
            lambda data, logprobs: (logprobs[0].sum() + (logprobs[1] + 3).sqrt().sum(), {}),
            [],
            LOGPROBS,
        )
