"""Drawing by the inverse of the cumulative distribution, against numpy's."""

import numpy as np
import pytest
import torch

from session.engine.compute.drawing import _block_sums, _by_inverse

VOCABULARY = 1000  # no multiple of the block


@pytest.fixture
def logprobs() -> torch.Tensor:
    random = torch.Generator().manual_seed(3)
    logits = 3 * torch.randn(64, VOCABULARY, generator=random)
    logits[:, 900:] = -torch.inf  # as top-k leaves them
    logits[:, 256:512] = -torch.inf  # a whole block
    return logits.log_softmax(-1)


def drawn(logprobs: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    chances = logprobs.exp()
    return _by_inverse(chances, _block_sums(chances), numbers)


def test_the_token_is_where_the_cumulative_probability_passes_the_number(
    logprobs: torch.Tensor,
) -> None:
    numbers = np.random.default_rng(1).random(64)
    found = drawn(logprobs, torch.from_numpy(numbers))
    reached = np.cumsum(np.exp(logprobs.double().numpy()), axis=-1)
    expected = [
        np.searchsorted(row, u, side="right") for row, u in zip(reached, numbers, strict=True)
    ]
    assert found.tolist() == expected


@pytest.mark.parametrize("number", [0.0, 1.0 - 2**-53])
def test_no_number_draws_a_token_without_a_chance(logprobs: torch.Tensor, number: float) -> None:
    found = drawn(logprobs, torch.full((64,), number, dtype=torch.float64))
    assert torch.isfinite(logprobs.gather(-1, found[:, None])).all()
