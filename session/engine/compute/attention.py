"""The attention of every forward pass: tokens of many sequences side by side, each sequence for
itself, with no padding between them.

transformers computes all of a model but this: its attention interface hands over query, key and
value, and the pass's `Plan` says which tokens belong together.

Shapes: N tokens of the pass, H query heads, G key-value heads, E values a head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor, nn
from transformers import AttentionInterface

NAME = "modelyard"


@dataclass(frozen=True, slots=True)
class Call:
    """What one layer asks. `window` is how many positions back a token sees, itself included;
    `sinks_H` are logits that take their share of each softmax and bring nothing; `softcap` bounds
    the scores, as softcap tanh(score / softcap)."""

    layer: int
    query_HNE: Tensor
    key_GNE: Tensor
    value_GNE: Tensor
    scaling: float
    window: int | None = None
    sinks_H: Tensor | None = None
    softcap: float | None = None

    @property
    def is_plain(self) -> bool:
        """Whether torch's own attention can do it."""
        return self.sinks_H is None and self.softcap is None


class Plan(Protocol):
    """Which tokens of a pass belong together, and what they see beside each other."""

    def attend(self, call: Call) -> Tensor:
        """What each token gathers, [N, H, E]."""
        ...


@dataclass(frozen=True, slots=True)
class Sequences:
    """Whole sequences from their first token on, one after another; `lengths` sum up to N."""

    lengths: Sequence[int]

    def attend(self, call: Call) -> Tensor:
        lengths = list(self.lengths)
        # torch's attention takes shared heads as they are on a CPU; elsewhere not in float32.
        shares = call.query_HNE.device.type == "cpu" and call.is_plain
        heads = (call.query_HNE, call.key_GNE, call.value_GNE) if shares else over_heads(call)
        pieces = zip(*(torch.split(each, lengths, dim=1) for each in heads), strict=True)
        whole = [attend(q[None], k[None], v[None], call)[0] for q, k, v in pieces]
        if len(whole) == 1:
            return whole[0].transpose(0, 1)
        return torch.cat(whole, dim=1).transpose(0, 1)


def over_heads(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value with as many heads each: some share a key and a value."""
    repeats = call.query_HNE.shape[0] // call.key_GNE.shape[0]
    key_HNE = call.key_GNE.repeat_interleave(repeats, dim=0)
    value_HNE = call.value_GNE.repeat_interleave(repeats, dim=0)
    return call.query_HNE, key_HNE, value_HNE


def attend(query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
    """The last T of S positions look back over all S: query [.., H, T, E], key and value
    [.., H, S, E], or with G heads where the call is plain."""
    count, seen = query.shape[-2], key.shape[-2]
    if not call.is_plain:
        return _attend_in_full(query, key, value, call)
    in_reach = call.window is None or seen <= call.window
    is_causal = count == seen and count > 1 and in_reach
    sees_all = count == 1 and in_reach
    mask = None if is_causal or sees_all else _visible(count, seen, call.window, query.device)
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=is_causal,
        scale=call.scaling,
        enable_gqa=query.shape[-3] != key.shape[-3],
    )


def _attend_in_full(query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
    """What torch's own attention has no argument for, with all scores in memory."""
    count, seen = query.shape[-2], key.shape[-2]
    scores = query @ key.transpose(-1, -2) * call.scaling
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    hidden_TS = ~_visible(count, seen, call.window, query.device)
    scores = scores.masked_fill(hidden_TS, -torch.inf)
    if call.sinks_H is None:
        return scores.softmax(-1).to(value.dtype) @ value
    sinks = call.sinks_H.to(scores.dtype).view(-1, 1, 1).expand(*scores.shape[:-1], 1)
    shares = torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1]
    return shares.to(value.dtype) @ value


def _visible(count: int, seen: int, window: int | None, device: torch.device) -> Tensor:
    """[T, S]: a token sees itself and what came before, as far as the window reaches."""
    distance_TS = torch.arange(seen - count, seen, device=device)[:, None] - torch.arange(
        seen, device=device
    )
    visible_TS = distance_TS >= 0
    return visible_TS if window is None else visible_TS & (distance_TS < window)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    plan: Plan,
    scaling: float,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The shape of transformers' attention functions: [1, H, N, E] in, [1, N, H, E] out."""
    layer: Any = module.layer_idx
    call = Call(layer, query[0], key[0], value[0], scaling, sliding_window, s_aux, softcap)
    return plan.attend(call)[None], None


# No mask function stands beside it, so transformers makes no mask: the plan knows.
AttentionInterface.register(NAME, _attend)
