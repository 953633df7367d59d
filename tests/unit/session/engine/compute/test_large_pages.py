"""Zeros like torch's, wherever they lie."""

import pytest
import torch

from session.engine.compute.large_pages import PAGE, large_zeros


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [1, PAGE // 8, PAGE + 1])
def test_they_are_zeros_of_the_shape_and_type(dtype: torch.dtype, columns: int) -> None:
    found = large_zeros((2, 3, columns), torch.empty(0, dtype=dtype))
    assert (found.shape, found.dtype) == ((2, 3, columns), dtype)
    assert not found.any()
    found[1, 2] = 1  # its last rows are its own
    assert found.sum() == columns


def test_a_large_one_begins_with_a_page() -> None:
    assert large_zeros((PAGE,), torch.empty(0)).data_ptr() % PAGE == 0
