"""From datums to micro-batches: every check of a user's numbers, and the packing by token count.

Shapes: T positions of a sequence, N tokens of the batch, K targets a token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from session.engine.compute.losses import FORMULAS
from session.engine.compute.model import BaseModel
from session.engine.port import Datum, EngineError, Loss

TARGETS = "target_tokens"
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Row:
    """A datum that has passed the checks; `inputs` are [T, K], `weights` always among them."""

    index: int
    tokens: npt.NDArray[np.int64]
    inputs: Mapping[str, Array]
    flat: bool  # its targets came as [T]


@dataclass(frozen=True, slots=True)
class Batch:
    """Its sequences one after another, without padding. Positions count within each of them."""

    rows: Sequence[Row]
    tokens_N: Tensor
    positions_N: Tensor
    inputs_NK: Mapping[str, Tensor]

    @property
    def lengths(self) -> list[int]:
        return [len(row.tokens) for row in self.rows]


def check(base: BaseModel, data: Sequence[Datum], loss: Loss) -> list[Row]:
    """Refuse what the loss is undefined for, by datum and key."""
    if not data:
        raise EngineError("the batch is empty")
    return [_row(base, index, datum, loss) for index, datum in enumerate(data)]


def pack(rows: Sequence[Row], budget: int) -> list[list[Row]]:
    """Groups of at most `budget` tokens (or of one row), longest first: each row goes where there
    is room for it."""
    groups: list[list[Row]] = []
    left: list[int] = []
    for row in sorted(rows, key=lambda row: -len(row.tokens)):
        size = len(row.tokens)
        place = next((n for n, room in enumerate(left) if size <= room), None)
        if place is None:
            groups.append([row])
            left.append(budget - size)
        else:
            groups[place].append(row)
            left[place] -= size
    return groups


def collate(rows: Sequence[Row], base: BaseModel) -> Batch:
    """On the base's device, floats in its precision."""
    tokens_N = np.concatenate([row.tokens for row in rows])
    positions_N = np.concatenate([np.arange(len(row.tokens)) for row in rows])
    targets = max(row.inputs[TARGETS].shape[1] for row in rows)
    inputs_NK = {
        key: _move(base, np.concatenate([_widen(row.inputs[key], targets) for row in rows]))
        for key in rows[0].inputs
    }
    return Batch(rows, _move(base, tokens_N), _move(base, positions_N), inputs_NK)


def check_tokens(base: BaseModel, tokens: Array, where: str) -> npt.NDArray[np.int64]:
    """`where` begins the message and names the array."""
    if tokens.dtype.kind not in "iu":
        raise EngineError(f"{where} has type {tokens.dtype}, not whole numbers")
    outside = (tokens < 0) | (tokens >= base.vocabulary)
    if outside.any():
        place = np.argwhere(outside)[0]
        raise EngineError(
            f"{where}{_subscript(place)} is {tokens[tuple(place)]}, "
            f"outside the vocabulary of {base.vocabulary}"
        )
    return tokens.astype(np.int64)


def _row(base: BaseModel, index: int, datum: Datum, loss: Loss) -> Row:
    where = f"datum {index}:"
    if not isinstance(datum, Datum):
        raise EngineError(f"{where} is a {type(datum).__name__}, not a Datum")
    if not isinstance(datum.inputs, Mapping):
        raise EngineError(f"{where} inputs is a {type(datum.inputs).__name__}, not a mapping")
    tokens = _array(f"{where} tokens", datum.tokens)
    if tokens.ndim != 1 or len(tokens) == 0:
        raise EngineError(f"{where} tokens has shape {list(tokens.shape)}: a row of at least one")
    if len(tokens) > base.context:
        raise EngineError(f"{where} {len(tokens)} tokens, longer than the context {base.context}")
    tokens = check_tokens(base, tokens, f"{where} tokens")
    arrays = {key: _array(f"{where} {key}", value) for key, value in datum.inputs.items()}
    _check_keys(where, arrays, loss)
    for key, array in arrays.items():
        _check_shape(f"{where} {key}", array, arrays[TARGETS], len(tokens))
    soft = arrays[TARGETS].ndim == 2
    if soft and loss is not Loss.cross_entropy:
        raise EngineError(f"{where} {TARGETS} has two dimensions: only cross_entropy takes those")
    inputs: dict[str, Array] = {
        key: _check_floats(f"{where} {key}", array)
        for key, array in arrays.items()
        if key != TARGETS
    }
    inputs[TARGETS] = check_tokens(base, arrays[TARGETS], f"{where} {TARGETS}")
    inputs.setdefault("weights", np.ones(inputs[TARGETS].shape, np.float32))
    shaped = {key: array.reshape(len(tokens), -1) for key, array in inputs.items()}
    return Row(index, tokens, shaped, flat=not soft)


def _array(where: str, value: npt.ArrayLike) -> Array:
    try:
        return np.asarray(value)
    except ValueError:
        raise EngineError(f"{where} is no array: its rows differ in length") from None


def _check_keys(where: str, arrays: Mapping[str, Array], loss: Loss) -> None:
    required = (TARGETS, *FORMULAS[loss].needs)
    for key in required:
        if key not in arrays:
            raise EngineError(f"{where} {key} is missing: {loss} needs it")
    for key in arrays:
        if key not in (*required, "weights"):
            known = ", ".join((*required, "weights"))
            raise EngineError(f"{where} {key!r} is not an input of {loss} (its inputs: {known})")


def _check_shape(where: str, array: Array, targets: Array, length: int) -> None:
    if array.ndim not in (1, 2) or array.shape[-1] == 0:
        raise EngineError(f"{where} has shape {list(array.shape)} for {length} tokens")
    if len(array) != length:
        raise EngineError(f"{where} has {len(array)} values for {length} tokens")
    if array.shape != targets.shape:
        raise EngineError(
            f"{where} has shape {list(array.shape)}, {TARGETS} has {list(targets.shape)}"
        )


def _check_floats(where: str, array: Array) -> npt.NDArray[np.float32]:
    if array.dtype.kind not in "iufb":
        raise EngineError(f"{where} has type {array.dtype}, not numbers")
    with np.errstate(over="ignore"):  # what overflows is refused below
        floats = array.astype(np.float32)
    wrong = ~np.isfinite(floats)
    if wrong.any():
        place = np.argwhere(wrong)[0]
        raise EngineError(f"{where}{_subscript(place)} is {floats[tuple(place)]}")
    return floats


def _move(base: BaseModel, array: Array) -> Tensor:
    tensor = torch.from_numpy(array)
    if tensor.is_floating_point():
        tensor = tensor.to(base.precision)
    if base.device.type == "cuda":
        return tensor.pin_memory().to(base.device, non_blocking=True)
    return tensor.to(base.device)


def _widen(array: Array, targets: int) -> Array:
    """Fill up to K targets with zeros: token 0 at weight 0 adds nothing."""
    return np.pad(array, ((0, 0), (0, targets - array.shape[1])))


def _subscript(place: npt.NDArray[np.intp]) -> str:
    return "".join(f"[{i}]" for i in place)
