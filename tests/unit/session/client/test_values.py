from typing import Any

import numpy as np
import pytest

from session import wire
from session.client.errors import InvalidInput
from session.client.tensors import ModelInput
from session.client.values import (
    AdamParams,
    Datum,
    ForwardBackwardOutput,
    SampleResponse,
    SamplingParams,
    split_ref,
    wire_data,
)


def datum(length: int, **inputs: Any) -> Datum:
    return Datum(ModelInput.from_ints(list(range(length))), inputs)


def test_whole_weights_become_float_and_targets_stay_whole() -> None:
    found = datum(2, target_tokens=[1, 2], weights=[True, 0], advantages=np.array([1, 2]))
    dtypes = {name: data.dtype for name, data in found.loss_fn_inputs.items()}
    assert dtypes == {"target_tokens": "int64", "weights": "float32", "advantages": "float32"}


def test_targets_that_are_not_whole_are_refused() -> None:
    with pytest.raises(InvalidInput, match="'target_tokens'"):
        datum(1, target_tokens=[1.5])


def test_a_bad_input_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"loss_fn_inputs\['weights'\]"):
        datum(1, target_tokens=[1], weights=["a"])


def test_a_missing_input_of_a_known_loss_is_named() -> None:
    good = datum(1, target_tokens=[1], logprobs=[0.0], advantages=[1.0])
    with pytest.raises(InvalidInput, match=r"data\[1\].*lacks 'logprobs', which ppo needs"):
        wire_data([good, datum(1, target_tokens=[1])], "ppo")


def test_rows_of_targets_are_counted_along_the_first_axis() -> None:
    packed = wire_data([datum(2, target_tokens=[[1, 2, 3], [4, 5, 6]])], "cross_entropy")
    assert packed[0].inputs["target_tokens"].shape == (2, 3)


def test_a_single_number_is_no_input() -> None:
    with pytest.raises(InvalidInput, match="a single number"):
        wire_data([datum(1, target_tokens=np.array(1))], "cross_entropy")


def test_a_batch_is_packed_when_it_is_submitted() -> None:
    weights = np.array([1.0], np.float32)
    packed = wire_data([datum(1, target_tokens=[1], weights=weights)], "cross_entropy")
    weights[0] = 9
    assert packed[0].inputs["weights"].array().tolist() == [1.0]


def test_a_learning_rate_from_numpy_travels() -> None:
    sent = AdamParams(learning_rate=np.float64(0.5), grad_clip_norm=0).to_wire()
    assert wire.unpack(wire.pack(sent), wire.OptimStep).learning_rate == 0.5
    assert sent.grad_clip_norm is None


@pytest.mark.parametrize("field", ["learning_rate", "grad_clip_norm"])
def test_a_negative_step_is_refused(field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        AdamParams(**{field: -1.0}).to_wire()


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_tokens", -1), ("temperature", -0.1), ("top_p", 0.0), ("top_p", 1.5), ("top_k", 0)],
)
def test_a_sampling_parameter_out_of_range_is_named(field: str, value: float) -> None:
    with pytest.raises(InvalidInput, match=field):
        SamplingParams(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["max_tokens", "top_k", "seed"])
@pytest.mark.parametrize("value", [2**63, 10**30, 10**5000], ids=["64 bits", "30", "5000"])
def test_a_whole_number_that_no_wire_carries_is_named(field: str, value: int) -> None:
    with pytest.raises(InvalidInput, match=f"{field} must be .* at most 64 bits"):
        SamplingParams(**{field: value})  # type: ignore[arg-type]


def test_the_loss_is_the_services_sum_or_that_of_the_datums() -> None:
    scored = wire.DatumResult(1.5, wire.Tensor.of(np.array([-1.5])))
    assert ForwardBackwardOutput.of(wire.Result({}, [scored, scored])).loss == 3.0
    assert ForwardBackwardOutput.of(wire.Result({"loss:sum": 3.5}, [scored])).loss == 3.5


def test_an_unscored_prompt_token_has_no_logprob() -> None:
    scores = wire.Tensor.of(np.array([np.nan, -0.5]))
    assert SampleResponse.of(wire.Samples("s", [], scores)).prompt_logprobs == [None, -0.5]


@pytest.mark.parametrize("ref", ["facts", "facts@", "@1", "facts@x", "facts@-1"])
def test_a_version_is_written_with_group_and_number(ref: str) -> None:
    with pytest.raises(InvalidInput, match="GROUP@VERSION"):
        split_ref(ref)
