import numpy as np
import pytest
import torch

from session.client.errors import InvalidInput
from session.client.tensors import EncodedTextChunk, ModelInput, TensorData, tensor_data


def test_lists_arrays_and_tensors_become_the_same_data() -> None:
    for value in ([1.5, 2.0], np.array([1.5, 2.0]), torch.tensor([1.5, 2.0])):
        found = tensor_data(value)
        assert (found.dtype, found.shape, found.tolist()) == ("float32", [2], [1.5, 2.0])


def test_bfloat16_with_a_gradient_becomes_float32() -> None:
    tensor = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
    assert TensorData.from_torch(tensor).to_numpy().dtype == np.float32


def test_two_dimensions_survive_the_way_to_torch_and_back() -> None:
    tensor = torch.arange(6).reshape(2, 3)
    assert torch.equal(TensorData.from_torch(tensor).to_torch(), tensor)


def test_what_to_torch_gives_is_a_copy() -> None:
    data = TensorData([1, 2], "int64")
    data.to_torch()[0] = 9
    assert data.tolist() == [1, 2]


@pytest.mark.parametrize("value", [["a"], [[1], [1, 2]], None])
def test_what_is_no_tensor_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"numbers|inhomogeneous"):
        tensor_data(value)  # type: ignore[arg-type]


def test_values_must_fill_the_shape() -> None:
    with pytest.raises(InvalidInput, match=r"3 values do not fill the shape \[2, 2\]"):
        TensorData([1, 2, 3], "int64", [2, 2])


def test_chunks_are_joined() -> None:
    joined = ModelInput.from_ints([1, 2]).append(EncodedTextChunk([3])).append_int(4)
    assert (joined.to_ints(), joined.length) == ([1, 2, 3, 4], 4)
    assert joined.to_wire("prompt").array().tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("tokens", [[], [1.5], [[1]], [True]])
def test_a_prompt_is_a_flat_sequence_of_ids(tokens: list[int]) -> None:
    with pytest.raises(InvalidInput, match=r"prompt holds no tokens|tokens must be"):
        ModelInput.from_ints(tokens).to_wire("prompt")


def test_tensor_data_is_read_like_a_list() -> None:
    found = TensorData([1.0, 2.0, 3.0, 4.0], "float32", [2, 2])
    assert len(found) == 2
    assert list(found) == [[1.0, 2.0], [3.0, 4.0]]
