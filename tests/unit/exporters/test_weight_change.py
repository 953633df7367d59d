"""Norms of weight changes, compared with what torch computes from the same files' tensors."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from exporters.tensor_file import read_header
from exporters.weight_change import Tensor, Update, tensor_change, update_change

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.bool]


def stored(path: Path, tensor: torch.Tensor) -> Tensor:
    """The tensor as its file has it."""
    save_file({"t": tensor.contiguous()}, path)
    found = read_header(path)["t"]
    return Tensor(found.dtype, found.shape, path.read_bytes()[-found.size :] if found.size else b"")


def norm(tensor: torch.Tensor) -> float:
    return float(torch.linalg.norm(tensor.double()))


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_norms_of_a_tensor_are_torchs(tmp_path: Path, dtype: torch.dtype) -> None:
    before = (random(33, 65) * 4).to(dtype)
    after = (random(33, 65, seed=1) * 4).to(dtype)
    found = tensor_change(stored(tmp_path / "a", before), stored(tmp_path / "b", after))
    assert found.before == pytest.approx(norm(before), rel=1e-9)
    assert found.after == pytest.approx(norm(after), rel=1e-9)
    assert found.difference == pytest.approx(norm(after.double() - before.double()), rel=1e-9)
    assert found.relative == pytest.approx(
        norm(after.double() - before.double()) / norm(before), rel=1e-9
    )


def test_a_large_tensor_is_added_up_in_pieces(tmp_path: Path) -> None:
    before = random(3, 2**20 + 7).to(torch.bfloat16)
    found = tensor_change(stored(tmp_path / "a", before), stored(tmp_path / "b", before + 1))
    assert found.before == pytest.approx(norm(before), rel=1e-9)
    moved = (before + 1).double() - before.double()
    assert found.difference == pytest.approx(norm(moved), rel=1e-9)


def factors(path: Path, rank: int, *, seed: int, scaling: float = 2.0) -> Update:
    path.mkdir()
    a, b = random(rank, 48, seed=seed).float(), random(40, rank, seed=seed + 100).float()
    return Update(stored(path / "a", a), stored(path / "b", b), scaling)


def product(update: Update) -> torch.Tensor:
    a = torch.frombuffer(bytearray(update.a.data), dtype=torch.float32).reshape(update.a.shape)
    b = torch.frombuffer(bytearray(update.b.data), dtype=torch.float32).reshape(update.b.shape)
    return update.scaling * (b.double() @ a.double())


@pytest.mark.parametrize("ranks", [(4, 4), (4, 16), (16, 1), (64, 64)])
def test_norms_of_an_update_are_those_of_its_product(
    tmp_path: Path, ranks: tuple[int, int]
) -> None:
    before = factors(tmp_path / "one", ranks[0], seed=1)
    after = factors(tmp_path / "two", ranks[1], seed=2, scaling=0.5)
    found = update_change(before, after)
    assert found.before == pytest.approx(norm(product(before)), rel=1e-9)
    assert found.after == pytest.approx(norm(product(after)), rel=1e-9)
    assert found.difference == pytest.approx(norm(product(after) - product(before)), rel=1e-9)


def test_a_small_difference_of_large_updates_keeps_its_digits(tmp_path: Path) -> None:
    """One entry moved by a millionth: a difference of squares would have lost it."""
    before = factors(tmp_path / "one", 8, seed=1)
    b = torch.frombuffer(bytearray(before.b.data), dtype=torch.float32).reshape(40, 8).double()
    b[3, 5] += 1e-6
    after = Update(before.a, stored(tmp_path / "b", b), before.scaling)
    moved = before.scaling * (
        (b - torch.frombuffer(bytearray(before.b.data), dtype=torch.float32).reshape(40, 8))
        @ torch.frombuffer(bytearray(before.a.data), dtype=torch.float32).reshape(8, 48).double()
    )
    found = update_change(before, after)
    assert found.difference == pytest.approx(norm(moved), rel=1e-5)


def test_equal_updates_have_no_difference_at_all(tmp_path: Path) -> None:
    update = factors(tmp_path / "one", 4, seed=1)
    assert update_change(update, update).difference == 0.0


def test_where_there_is_nothing_to_compare_there_is_no_number(tmp_path: Path) -> None:
    one = stored(tmp_path / "a", torch.ones(2, 2))
    other = stored(tmp_path / "b", torch.ones(3))
    assert tensor_change(one, other).difference is None
    assert tensor_change(None, other).after == pytest.approx(math.sqrt(3))
    infinite = stored(tmp_path / "c", torch.tensor([math.inf]))
    change = tensor_change(infinite, infinite)
    assert (change.before, change.difference, change.relative) == (None, None, None)
    zero = stored(tmp_path / "d", torch.zeros(2, 2))
    assert (tensor_change(zero, one).relative, tensor_change(zero, one).difference) == (None, 2.0)
    small = stored(tmp_path / "e", torch.ones(2).to(torch.float8_e4m3fn))
    assert tensor_change(small, small).before is None
