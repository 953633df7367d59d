"""What is refused, with which words, and how rows are packed."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from session.engine.compute.batch import check, collate, pack
from session.engine.compute.model import BaseModel
from session.engine.port import Datum, EngineError, Loss
from support.tiny import tiny_datum

GOOD = tiny_datum(4)
TARGETS = np.array([5, 6, 7, 8])
ONES = np.ones(4, np.float32)


FOUR = [1, 2, 3, 4]
NAN = np.array([1, 1, np.nan, 1])


def inputs(**others: Any) -> dict[str, Any]:
    return {"target_tokens": TARGETS, **others}


@pytest.mark.parametrize(
    ("tokens", "given", "message"),
    [
        (FOUR, {}, "target_tokens is missing: cross_entropy needs it"),
        ([1, 2, 999, 4], inputs(), r"tokens\[2\] is 999, outside the vocabulary of 384"),
        ([1, 2, -1, 4], inputs(), r"tokens\[2\] is -1, outside the vocabulary of 384"),
        ([1, 2, 3], inputs(), "target_tokens has 4 values for 3 tokens"),
        (FOUR, {"target_tokens": TARGETS + 380}, r"target_tokens\[0\] is 385, outside"),
        (FOUR, {"target_tokens": ONES}, "target_tokens has type float32"),
        (FOUR, inputs(weights=ONES[:2]), "weights has 2 values for 4 tokens"),
        (FOUR, inputs(weights=NAN), r"weights\[2\] is nan"),
        (FOUR, inputs(weights=np.full(4, 1e300)), r"weights\[0\] is inf"),
        (FOUR, inputs(wieghts=ONES), "'wieghts' is not an input of cross_entropy"),
        (FOUR, inputs(advantages=ONES), "'advantages' is not an input of cross_entropy"),
        ([], {"target_tokens": TARGETS[:0]}, r"tokens has shape \[0\]"),
        ([3] * 513, {"target_tokens": np.full(513, 3)}, "513 tokens, longer than the context 512"),
    ],
)
def test_a_datum_that_cannot_be_computed_is_named(
    base: BaseModel, tokens: list[int], given: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(EngineError, match=f"datum 1: {message}"):
        check(base, [GOOD, Datum(np.array(tokens, np.int64), given)], Loss.cross_entropy)


@pytest.mark.parametrize("key", ["logprobs", "advantages"])
def test_a_policy_loss_names_what_it_lacks(base: BaseModel, key: str) -> None:
    full = tiny_datum(4, loss=Loss.ppo)
    rest = {name: value for name, value in full.inputs.items() if name != key}
    with pytest.raises(EngineError, match=f"datum 0: {key} is missing: ppo needs it"):
        check(base, [replace(full, inputs=rest)], Loss.ppo)


@pytest.mark.parametrize(
    ("datum", "message"),
    [
        (None, "datum 1: is a NoneType, not a Datum"),
        (Datum(GOOD.tokens, None), "datum 1: inputs is a NoneType, not a mapping"),  # type: ignore[arg-type]
        (Datum(GOOD.tokens, inputs(weights=[[1], [1, 2], [1], [1]])), "datum 1: weights is no arr"),
    ],
)
def test_what_is_no_datum_is_named(base: BaseModel, datum: Any, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        check(base, [GOOD, datum], Loss.cross_entropy)


def test_soft_targets_are_for_cross_entropy_only(base: BaseModel) -> None:
    two = np.stack([TARGETS, TARGETS], axis=1)
    given = {"target_tokens": two, "logprobs": two * 0.1, "advantages": two * 0.1}
    with pytest.raises(EngineError, match="two dimensions"):
        check(base, [Datum(np.arange(4), given)], Loss.ppo)


def test_whole_numbers_serve_as_weights(base: BaseModel) -> None:
    datum = Datum(np.arange(4), inputs(weights=np.array([0, 0, 1, 2])))
    (row,) = check(base, [datum], Loss.cross_entropy)
    assert row.inputs["weights"].dtype == np.float32


def test_groups_keep_to_the_budget(base: BaseModel) -> None:
    lengths = [3, 40, 9, 9, 1, 12, 30, 2]
    rows = check(base, [tiny_datum(length) for length in lengths], Loss.cross_entropy)
    groups = pack(rows, 32)
    assert sorted(row.index for group in groups for row in group) == list(range(8))
    for group in groups:
        assert sum(len(row.tokens) for row in group) <= 32 or len(group) == 1
    assert len(groups) < len(rows)


def test_a_batch_holds_its_rows_without_their_padding(base: BaseModel) -> None:
    rows = check(base, [tiny_datum(3), tiny_datum(5)], Loss.cross_entropy)
    batch = collate(rows, base)
    expected = np.concatenate([row.tokens for row in rows])
    np.testing.assert_array_equal(batch.tokens_N.numpy(), expected)
    assert batch.inputs_NK["weights"].shape == (8, 1)
