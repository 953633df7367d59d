"""Keys and values that sampling keeps between passes.

A `Prompt` holds those of one text, computed once for whoever asks for it. A `Group` holds those of
running samples side by side, so that a layer attends for all of them by one call.

Shapes: S samples of a group, C positions that a slot has room for, L of them in use, T positions of
a prompt, N tokens of a pass, H query heads, G key-value heads, R = H / G, E values a head.
"""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from session.engine.compute.attention import Call
from session.engine.compute.large_pages import large_zeros
from session.engine.compute.lora import Adapter

Rows = slice | Tensor


def capacity(length: int) -> int:
    """Room for so many positions, in steps of 256 and from 2,048 on of an eighth and more. Few
    sizes: samples of like length share a group, and every group costs calls of its own."""
    step = 256
    while step * 8 < length:
        step *= 2
    return -(-length // step) * step


class Prompt:
    """A text under one adapter, of which the first `done` positions are computed."""

    def __init__(self, tokens: npt.NDArray[np.int64], adapter: Adapter | None, owner: str) -> None:
        self.tokens = tokens
        self.owner = owner
        self.done = 0
        self.users = 0
        self.last_D: Tensor | None = None  # after the last position, once that is computed
        self.scores: list[Tensor] | None = None  # of its tokens, where somebody asked
        self._adapter = None if adapter is None else weakref.ref(adapter)
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def is_complete(self) -> bool:
        return self.last_D is not None

    @property
    def is_forgotten(self) -> bool:
        """Nobody can ask for its weights any more."""
        return self._adapter is not None and self._adapter() is None

    def belongs_to(self, adapter: Adapter | None, owner: str) -> bool:
        mine = None if self._adapter is None else self._adapter()
        return mine is adapter and not self.is_forgotten and self.owner == owner

    def is_like(self, other: "Prompt") -> bool:
        return self.owner == other.owner and self._adapter == other._adapter

    def in_common(self, tokens: npt.NDArray[np.int64]) -> int:
        """How many positions of `tokens` are computed here."""
        length = min(self.done, len(tokens))
        differs = self.tokens[:length] != tokens[:length]
        return int(differs.argmax()) if differs.any() else length

    def adopt(self, other: "Prompt", count: int) -> None:
        for layer, (key_GTE, value_GTE) in other._layers.items():
            self.write(layer, 0, key_GTE[:, :count], value_GTE[:, :count])
        self.done = count

    def take(self, layer: int, key_GLE: Tensor, value_GLE: Tensor) -> None:
        """The whole of a layer, copied."""
        self._layers[layer] = (key_GLE.clone(), value_GLE.clone())

    def write(self, layer: int, start: int, key_GNE: Tensor, value_GNE: Tensor) -> None:
        if layer not in self._layers:
            groups, _, size = key_GNE.shape
            shape = (groups, len(self.tokens), size)
            self._layers[layer] = (key_GNE.new_empty(shape), value_GNE.new_empty(shape))
        for kept, new in zip(self._layers[layer], (key_GNE, value_GNE), strict=True):
            kept[:, start : start + new.shape[1]] = new

    def read(self, layer: int, stop: int) -> tuple[Tensor, Tensor]:
        key_GTE, value_GTE = self._layers[layer]
        return key_GTE[:, :stop], value_GTE[:, :stop]

    def layers(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        for layer, (key_GTE, value_GTE) in self._layers.items():
            yield layer, key_GTE, value_GTE


@dataclass(eq=False)
class Slot:
    """A sample's place. `filled` counts the positions in it: the prompt's are among them unless
    the group shares the prompt. `row` is its row of the pass."""

    filled: int = 0
    index: int = -1
    row: int = -1


@dataclass(eq=False)
class Group:
    """Slots of one capacity; `prompt` is what all of them continue, or None where each holds its
    own."""

    capacity: int
    prompt: Prompt | None
    slots: list[Slot] = field(default_factory=list)
    _room: int = 0
    _used: int = 0  # places that have held something
    _layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    _places_N: Tensor | None = None
    _biases: dict[int | None, tuple[Tensor | None, Tensor | None]] = field(default_factory=dict)

    def expect(self, count: int) -> None:
        """Make room for so many more slots, at once: growing copies all that is there."""
        needed = len(self.slots) + count
        if needed > self._room:
            self._room = max(needed, self._room + max(4, self._room // 4))
            for layer, (key, value) in self._layers.items():
                self._layers[layer] = self._grown(key, value)

    def add(self, slot: Slot) -> None:
        """In a place of zeros: what it held before may be another account's, and not finite."""
        self.expect(1)
        slot.index = len(self.slots)
        self.slots.append(slot)
        if slot.index < self._used:
            for kept in self._layers.values():
                for tensor in kept:
                    tensor[slot.index] = 0
        self._used = max(self._used, len(self.slots))

    def fill(self, slot: Slot, layer: int, key_GLE: Tensor, value_GLE: Tensor) -> None:
        """Put what a slot holds at its beginning."""
        for kept, new in zip(
            self._kept(layer, key_GLE, value_GLE), (key_GLE, value_GLE), strict=True
        ):
            kept[slot.index, :, : new.shape[1]] = new

    def read(self, slot: Slot) -> Iterator[tuple[int, Tensor, Tensor]]:
        for layer, (key, value) in self._layers.items():
            yield layer, key[slot.index, :, : slot.filled], value[slot.index, :, : slot.filled]

    def remove(self, slot: Slot) -> None:
        """The last slot takes the place, so that those in use stay side by side."""
        last = self.slots.pop()
        if last is not slot:
            for kept in self._layers.values():
                for tensor in kept:
                    tensor[slot.index] = tensor[last.index]
            self.slots[slot.index] = last
            last.index = slot.index

    def prepare(self) -> None:
        """Before each pass, which adds one position to every slot."""
        self._biases = {}
        self._places_N = None

    def attend(self, call: Call, rows: Rows) -> Tensor:
        """What the newest token of each slot gathers, [S, H, E]; it is kept first."""
        key_SGE = call.key_GNE.transpose(0, 1)[rows]
        value_SGE = call.value_GNE.transpose(0, 1)[rows]
        keys, values = self._append(call.layer, key_SGE, value_SGE)
        query_SHE = call.query_HNE.transpose(0, 1)[rows]
        samples, groups, size = key_SGE.shape
        query_SGRE = query_SHE.reshape(samples, groups, -1, size)
        if call.window not in self._biases:
            self._biases[call.window] = self._bias(call.window, query_SHE)
        bias, _ = self._biases[call.window]
        if self.prompt is not None or not call.is_plain:
            return self._attend_in_parts(call, query_SGRE, keys, values).flatten(1, 2)
        if bias is not None:
            bias = bias.expand(-1, -1, query_SGRE.shape[2], -1)
        gathered_SGRE = F.scaled_dot_product_attention(
            query_SGRE, keys, values, attn_mask=bias, scale=call.scaling
        )
        return gathered_SGRE.flatten(1, 2)

    def _attend_in_parts(
        self, call: Call, query_SGRE: Tensor, keys_SGLE: Tensor, values_SGLE: Tensor
    ) -> Tensor:
        """One softmax over the shared prompt, the slot and the sinks. The prompt's keys are read
        once for all samples."""
        bias, prompt_bias = self._biases[call.window]
        scores = query_SGRE.flatten(0, 1) @ keys_SGLE.flatten(0, 1).transpose(1, 2)
        parts = [_biased(scores.view(*query_SGRE.shape[:3], -1), call, bias)]
        if self.prompt is not None:
            key_GTE, value_GTE = self.prompt.read(call.layer, self.prompt.done)
            scores = _by_head(query_SGRE) @ key_GTE.transpose(1, 2)
            parts.append(_biased(_by_sample(scores, query_SGRE), call, prompt_bias))
        if call.sinks_H is not None:
            sinks_GR1 = call.sinks_H.to(parts[0].dtype).view(*query_SGRE.shape[1:3], 1)
            parts.append(sinks_GR1.expand(len(query_SGRE), -1, -1, -1))
        shares = torch.cat(parts, dim=-1).softmax(-1).to(query_SGRE.dtype)
        pieces = torch.split(shares, [each.shape[-1] for each in parts], dim=-1)
        gathered_SGRE = (pieces[0].flatten(0, 1) @ values_SGLE.flatten(0, 1)).view_as(query_SGRE)
        if self.prompt is not None:
            of_prompt = _by_head(pieces[1]) @ value_GTE
            gathered_SGRE = gathered_SGRE + _by_sample(of_prompt, query_SGRE)
        return gathered_SGRE

    def _append(self, layer: int, key_SGE: Tensor, value_SGE: Tensor) -> tuple[Tensor, Tensor]:
        count, groups, size = key_SGE.shape
        if self._places_N is None:
            starts_SG = torch.arange(count * groups).view(count, groups) * self.capacity
            filled_S1 = torch.tensor([[slot.filled] for slot in self.slots])
            self._places_N = (starts_SG + filled_S1).flatten().to(key_SGE.device)
        longest = max(slot.filled for slot in self.slots) + 1
        seen = []
        kept = self._kept(layer, key_SGE.transpose(0, 1), value_SGE.transpose(0, 1))
        for tensor, new_SGE in zip(kept, (key_SGE, value_SGE), strict=True):
            tensor.view(-1, size).index_copy_(0, self._places_N, new_SGE.reshape(-1, size))
            seen.append(tensor[:count, :, :longest])
        return seen[0], seen[1]

    def _bias(self, window: int | None, like: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """What is added to the scores: [S, 1, 1, L] over slots, [S, 1, 1, T] over the prompt."""
        filled_S1 = torch.tensor([[slot.filled] for slot in self.slots])
        distance_SL = filled_S1 - torch.arange(int(filled_S1.max()) + 1)
        prompt = 0 if self.prompt is None else self.prompt.done
        distance_ST = filled_S1 + prompt - torch.arange(prompt)
        return _hiding(distance_SL, window, like), _hiding(distance_ST, window, like)

    def _kept(self, layer: int, key_GNE: Tensor, value_GNE: Tensor) -> tuple[Tensor, Tensor]:
        if layer not in self._layers:
            groups, _, size = key_GNE.shape
            shape = (self._room, groups, self.capacity, size)
            self._layers[layer] = _room_for(shape, key_GNE)
        return self._layers[layer]

    def _grown(self, key_SGCE: Tensor, value_SGCE: Tensor) -> tuple[Tensor, Tensor]:
        grown = _room_for((self._room, *key_SGCE.shape[1:]), key_SGCE)
        for new, old in zip(grown, (key_SGCE, value_SGCE), strict=True):
            new[: len(old)] = old
        return grown


def _room_for(shape: tuple[int, ...], like: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of zeros: what is hidden weighs nothing, but nothing times NaN would still be
    NaN."""
    key, value = large_zeros((2, *shape), like).unbind(0)
    return key, value


def _hiding(distance_SL: Tensor, window: int | None, like: Tensor) -> Tensor | None:
    hidden_SL = distance_SL < 0
    if window is not None:
        hidden_SL = hidden_SL | (distance_SL >= window)
    if not hidden_SL.any():
        return None
    bias = torch.zeros(hidden_SL.shape).masked_fill(hidden_SL, -torch.inf)
    return bias[:, None, None].to(like.device, like.dtype)


def _biased(scores: Tensor, call: Call, bias: Tensor | None) -> Tensor:
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32)) * call.scaling
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    return scores if bias is None else scores + bias


def _by_head(tensor_SGRX: Tensor) -> Tensor:
    """[G, S R, X]: what the samples ask of one key head, side by side."""
    return tensor_SGRX.transpose(0, 1).flatten(1, 2)


def _by_sample(tensor_GNX: Tensor, like_SGRE: Tensor) -> Tensor:
    """The way back: [S, G, R, X]."""
    samples, groups, repeats, _ = like_SGRE.shape
    return tensor_GNX.view(groups, samples, repeats, -1).transpose(0, 1)
