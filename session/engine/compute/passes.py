"""One forward pass for all that samples from a base: the newest token of every running sample, and
pieces of prompts.

Shapes: N tokens of the pass, S samples, B rows for the head, H query heads, E values a head,
D hidden size, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from session.engine.compute.attention import Call, attend, over_heads
from session.engine.compute.keys import Group, Prompt, Rows
from session.engine.compute.lora import Adapter, Range
from session.engine.compute.model import BaseModel
from session.engine.compute.sampler import Sample


class Adapted(Protocol):
    @property
    def adapter(self) -> Adapter | None: ...


T = TypeVar("T", bound=Adapted)


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """The next `count` positions of a prompt."""

    adapter: Adapter | None
    prompt: Prompt
    count: int

    @property
    def position(self) -> int:
        return self.prompt.done

    @property
    def input(self) -> npt.NDArray[np.int64]:
        return self.prompt.tokens[self.position : self.position + self.count]


@dataclass(frozen=True, slots=True)
class Pass:
    """The plan: groups with the rows of their slots, and pieces with their first row."""

    groups: Sequence[tuple[Group, Rows]]
    pieces: Sequence[tuple[Piece, int]]

    def attend(self, call: Call) -> Tensor:
        count, size = call.query_HNE.shape[1], call.value_GNE.shape[-1]
        gathered_NHE = call.value_GNE.new_empty(count, len(call.query_HNE), size)
        for group, rows in self.groups:
            gathered_NHE[rows] = group.attend(call, rows)
        for piece, row in self.pieces:
            gathered_NHE[row : row + piece.count] = _attend_piece(piece, call, row)
        return gathered_NHE


@torch.no_grad()
def compute(base: BaseModel, samples: Sequence[Sample], pieces: Sequence[Piece]) -> Tensor:
    """States after the last norm, [S, D], of the samples; the prompts of the pieces advance.

    Rows of one adapter lie side by side, so that each layer multiplies by each adapter once.
    """
    work: list[Sample | Piece] = by_adapter([*samples, *pieces])
    sizes = [len(each.input) for each in work]
    first = dict(zip(work, np.cumsum([0, *sizes]).tolist(), strict=False))
    tokens_N = np.concatenate([each.input for each in work])
    positions_N = np.concatenate([each.position + np.arange(len(each.input)) for each in work])
    for sample in samples:
        sample.slot.row = first[sample]
    plan = Pass(_groups(samples), [(piece, first[piece]) for piece in pieces])
    with base.slot.using_ranges(ranges([each.adapter for each in work], sizes)):
        hidden_ND = base.sampled(
            torch.from_numpy(tokens_N).to(base.device),
            torch.from_numpy(positions_N).to(base.device),
            plan,
        )
    for sample in samples:
        sample.slot.filled += 1
    for piece in pieces:
        _advance(base, piece, hidden_ND[first[piece] : first[piece] + piece.count])
    return hidden_ND[[first[sample] for sample in samples]]


@torch.no_grad()
def logits(base: BaseModel, adapters: Sequence[Adapter | None], states_BD: Tensor) -> Tensor:
    """[B, V], of states that lie in the order of their adapters."""
    with base.slot.using_ranges(ranges(adapters, [1] * len(adapters))):
        return base.logits(states_BD)


def by_adapter(work: Sequence[T]) -> list[T]:
    """Those of one adapter side by side, adapters in the order in which they appear."""
    order: dict[int, int] = {}
    return sorted(work, key=lambda each: order.setdefault(id(each.adapter), len(order)))


def ranges(adapters: Sequence[Adapter | None], sizes: Sequence[int]) -> list[Range]:
    found: list[Range] = []
    stop = 0
    for adapter, size in zip(adapters, sizes, strict=True):
        start, stop = stop, stop + size
        if adapter is None:
            continue
        if found and found[-1].adapter is adapter and found[-1].stop == start:
            start = found.pop().start
        found.append(Range(start, stop, adapter))
    return found


def _groups(samples: Sequence[Sample]) -> list[tuple[Group, Rows]]:
    found = {id(sample.group): sample.group for sample in samples if sample.group is not None}
    for group in found.values():
        group.prepare()
    return [(group, _rows([slot.row for slot in group.slots])) for group in found.values()]


def _rows(rows: list[int]) -> Rows:
    """As a slice where they follow each other: that copies nothing."""
    if rows == list(range(rows[0], rows[0] + len(rows))):
        return slice(rows[0], rows[0] + len(rows))
    return torch.tensor(rows)


def _attend_piece(piece: Piece, call: Call, row: int) -> Tensor:
    """[count, H, E]: over the prompt from its beginning on, this piece included."""
    own = slice(row, row + piece.count)
    start, stop = piece.position, piece.position + piece.count
    piece.prompt.write(call.layer, start, call.key_GNE[:, own], call.value_GNE[:, own])
    key_GTE, value_GTE = piece.prompt.read(call.layer, stop)
    whole = replace(call, query_HNE=call.query_HNE[:, own], key_GNE=key_GTE, value_GNE=value_GTE)
    query_HNE, key_HTE, value_HTE = over_heads(whole)
    gathered = attend(query_HNE[None], key_HTE[None], value_HTE[None], call)
    return gathered[0].transpose(0, 1)


def _advance(base: BaseModel, piece: Piece, states_ND: Tensor) -> None:
    prompt = piece.prompt
    following = prompt.tokens[prompt.done + 1 : prompt.done + 1 + piece.count]
    if prompt.scores is not None and len(following):
        with base.slot.using(piece.adapter):
            logprobs_NV = base.logits(states_ND[: len(following)]).float().log_softmax(-1)
        wanted_N1 = torch.from_numpy(following).to(base.device)[:, None]
        prompt.scores.append(logprobs_NV.gather(-1, wanted_N1)[:, 0])
    prompt.done += piece.count
    if prompt.done == len(prompt.tokens):
        prompt.last_D = states_ND[-1].clone()
