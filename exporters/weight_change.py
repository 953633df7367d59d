"""How far weights have moved from one version to another: norms, tensor by tensor, in numpy alone.

Everything is added up in float64, a piece at a time, so that beside the two tensors that are
compared there is never a third of their size.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_PIECE = 2**20
_DTYPES: Mapping[str, str] = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "U64": "<u8",
    "I64": "<i8",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """As it lies in a safetensors file."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def pieces(self) -> Iterator[Array]:
        """Its numbers in float64, flat."""
        if self.dtype == "BF16":
            stored = np.frombuffer(self.data, "<u2")
        else:
            stored = np.frombuffer(self.data, _DTYPES[self.dtype])
        for begin in range(0, stored.size, _PIECE):
            yield _widened(stored[begin : begin + _PIECE], is_bf16=self.dtype == "BF16")

    def matrix(self) -> Array:
        """In float64, for what is small: a factor of an adapter."""
        flat = np.concatenate([*self.pieces()]) if self.data else np.zeros(0)
        return flat.reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Update:
    """What a LoRA module adds to a weight: scaling · B A, with `a` [rank, in], `b` [out, rank]."""

    a: Tensor
    b: Tensor
    scaling: float

    @property
    def shape(self) -> tuple[int, int]:
        return self.b.shape[0], self.a.shape[1]


@dataclass(frozen=True, slots=True)
class Change:
    """Frobenius norms. None where a side is missing, shapes differ, or a number is not finite."""

    before: float | None
    after: float | None
    difference: float | None

    @property
    def relative(self) -> float | None:
        """The difference in units of what it was before."""
        if self.difference is None or not self.before:
            return None
        return self.difference / self.before


def tensor_change(before: Tensor | None, after: Tensor | None) -> Change:
    """‖W‖ of each, and ‖W' - W‖. An 8-bit float has no norm here: None."""
    difference = None
    if _comparable(before) and _comparable(after) and before.shape == after.shape:
        moved = (b - a for a, b in zip(before.pieces(), after.pieces(), strict=True))
        difference = _finite(_norm(moved))
    return Change(_norm_of(before), _norm_of(after), difference)


def update_change(before: Update | None, after: Update | None) -> Change:
    """‖s B A‖ of each, and ‖s' B' A' - s B A‖, without ever making a matrix of the weight's size.

    A difference of two products is one product, [s' B', -s B] [A'; A], whatever the two ranks are.
    With thin QR factorisations of its left factor, Q R, and of its right factor transposed, P S,
    it is Q (R Sᵀ) Pᵀ, and the Frobenius norm does not see the orthonormal Q and P (Golub & Van
    Loan, Matrix Computations, 2.3 and 5.2): ‖R Sᵀ‖ remains, of size rank + rank'. Unlike Gram
    matrices, this squares nothing, so that a small difference of large updates keeps its digits.
    """
    difference = None
    if _has_numbers(before) and _has_numbers(after) and before.shape == after.shape:
        left = np.hstack([after.scaling * after.b.matrix(), -before.scaling * before.b.matrix()])
        right = np.vstack([after.a.matrix(), before.a.matrix()])
        difference = 0.0 if before == after else _product_norm(left, right)
    return Change(_update_norm(before), _update_norm(after), difference)


def _update_norm(update: Update | None) -> float | None:
    if not _has_numbers(update):
        return None
    return _product_norm(update.scaling * update.b.matrix(), update.a.matrix())


def _has_numbers(update: Update | None) -> TypeGuard[Update]:
    return update is not None and _comparable(update.a) and _comparable(update.b)


def _product_norm(left: Array, right: Array) -> float | None:
    """‖left right‖, of two factors that are long and narrow."""
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return None
    r: Array = np.asarray(np.linalg.qr(left, mode="r"))
    s: Array = np.asarray(np.linalg.qr(right.T, mode="r"))
    return _finite(float(np.linalg.norm(r @ s.T)))


def _norm_of(tensor: Tensor | None) -> float | None:
    return _finite(_norm(tensor.pieces())) if _comparable(tensor) else None


def _comparable(tensor: Tensor | None) -> TypeGuard[Tensor]:
    return tensor is not None and (tensor.dtype == "BF16" or tensor.dtype in _DTYPES)


def _norm(pieces: Iterator[Array]) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        return math.sqrt(sum(float(np.dot(piece, piece)) for piece in pieces))


def _finite(norm: float) -> float | None:
    return norm if math.isfinite(norm) else None


def _widened(stored: Array, *, is_bf16: bool) -> Array:
    """bfloat16 is the upper half of a float32."""
    if is_bf16:
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):
        return stored.astype(np.float64)
