"""The head, whose numbers test_golden.py compares: that pieces of it are the whole."""

import pytest
import torch

from session.engine.compute.head import Inputs, Scored, score
from session.engine.compute.lora import new_adapter
from session.engine.compute.model import BaseModel
from support.tiny import LORA

N, K, VOCABULARY = 50, 2, 384


def scored(base: BaseModel, logits: int, *, masked: bool = False) -> Scored:
    random = torch.Generator().manual_seed(1)
    hidden = torch.randn(N, 48, generator=random)
    weights = torch.randn(N, K, generator=random)
    if masked:
        weights[10:40] = 0.0
    inputs = {
        "target_tokens": torch.randint(VOCABULARY, (N, K), generator=random),
        "weights": weights,
    }

    def terms(logprobs: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        return -inputs["weights"] * logprobs

    with base.slot.using(new_adapter(base.layers, LORA)):
        return score(base.head, hidden, inputs, terms, with_slopes=True, logits=logits)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 7, 49])
def test_pieces_are_the_whole(base: BaseModel, rows: int, masked: bool) -> None:
    whole = scored(base, N * VOCABULARY, masked=masked)
    pieces = scored(base, rows * VOCABULARY, masked=masked)
    for found, expected in (
        (pieces.logprobs_NK, whole.logprobs_NK),
        (pieces.terms_NK, whole.terms_NK),
        (pieces.slopes_ND, whole.slopes_ND),
        *((pieces.head[name], each) for name, each in whole.head.items()),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_masked_tokens_pass_nothing_back(base: BaseModel) -> None:
    slopes = scored(base, N * VOCABULARY, masked=True).slopes_ND
    assert not slopes[10:40].any()
    assert slopes[:10].any(-1).all()
