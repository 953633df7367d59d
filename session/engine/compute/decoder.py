"""The layers of most models once more, in few calls: what sampling computes with.

A pass of few rows takes as long as its calls do, and transformers makes many. These layers are
those of Llama: two norms, attention with or without norms of query and key, and a gated MLP.
Whatever differs from them keeps transformers' own layers.

Shapes: N tokens of the pass, D hidden size, I and O what a product reads and writes, H query heads,
G key-value heads, E values a head.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor, nn

from session.engine.compute.attention import Call, Plan, Sequences
from session.engine.compute.lora import LoraLinear
from session.engine.compute.packed import Packed

_PROBE = 8  # tokens
# transformers' norms and cosines are of float32, whatever the states are.
_AGREES = {torch.float64: 1e-5, torch.float32: 1e-4, torch.bfloat16: 0.1}  # of the largest value
_BODY = {"embed_tokens", "layers", "norm", "rotary_emb"}
_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_NORMS = {"q_norm", "k_norm"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}


class Product:
    """Linear layers that read the same input, and their adapters."""

    def __init__(self, *layers: LoraLinear) -> None:
        self.layers = layers
        self.packed: Packed | None = None
        ends = torch.tensor([0, *(each.linear.out_features for each in layers)]).cumsum(0)
        self._columns = [slice(*each) for each in pairwise(ends.tolist())]

    def __call__(self, x_NI: Tensor) -> Tensor:
        """[N, O], what each layer gives side by side."""
        if self.packed is not None and self.packed.suits(x_NI):
            y_NO = self.packed(x_NI)
        else:
            parts = [each.linear(x_NI) for each in self.layers]
            y_NO = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        if self.layers[0].slot.ranges:
            for layer, columns in zip(self.layers, self._columns, strict=True):
                layer.adapt(x_NI, y_NO[:, columns])
        return y_NO


class Norm:
    """x / sqrt(mean(x^2) + eps) * weight, over the last dimension."""

    def __init__(self, module: Any) -> None:
        self._weight: Tensor = module.weight
        self._eps: float = module.variance_epsilon

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self._weight.shape, self._weight, self._eps)


@dataclass(frozen=True, slots=True)
class Turn:
    """Cosine and sine of every token's position, [N, 1, E]; the sine of the first half is negative,
    so that the halves need only change places."""

    cos_N1E: Tensor
    sin_N1E: Tensor

    def __call__(self, x_NHE: Tensor) -> Tensor:
        first, second = x_NHE.chunk(2, dim=-1)
        swapped_NHE = torch.cat((second, first), dim=-1)
        return torch.addcmul(x_NHE * self.cos_N1E, swapped_NHE, self.sin_N1E)


class Layer:
    def __init__(self, module: Any, call: Call) -> None:
        attention, mlp = module.self_attn, module.mlp
        self.qkv = Product(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out = Product(attention.o_proj)
        self.gate_up = Product(mlp.gate_proj, mlp.up_proj)
        self.down = Product(mlp.down_proj)
        self._before_attention = Norm(module.input_layernorm)
        self._before_mlp = Norm(module.post_attention_layernorm)
        has_norms = hasattr(attention, "q_norm")
        self._norms = (Norm(attention.q_norm), Norm(attention.k_norm)) if has_norms else None
        self._activation: Callable[[Tensor], Tensor] = mlp.act_fn
        self._call = call
        self._heads = call.query_HNE.shape[0]
        self._groups, _, self._size = call.key_GNE.shape

    def __call__(self, x_ND: Tensor, turn: Turn, plan: Plan) -> Tensor:
        gathered_NHE = self._attend(self._before_attention(x_ND), turn, plan)
        x_ND = self.out(gathered_NHE.flatten(1)).add_(x_ND)
        gate_NI, up_NI = self.gate_up(self._before_mlp(x_ND)).chunk(2, dim=-1)
        return self.down(self._activation(gate_NI).mul_(up_NI)).add_(x_ND)

    def _attend(self, x_ND: Tensor, turn: Turn, plan: Plan) -> Tensor:
        heads_NHE = self.qkv(x_ND).view(len(x_ND), -1, self._size)
        both = self._heads + self._groups
        if self._norms is None:
            turned_NHE = turn(heads_NHE[:, :both])
        else:
            parts = heads_NHE[:, : self._heads], heads_NHE[:, self._heads : both]
            normed = [norm(part) for norm, part in zip(self._norms, parts, strict=True)]
            turned_NHE = turn(torch.cat(normed, dim=1))
        turned_HNE = turned_NHE.transpose(0, 1)
        call = Call(
            self._call.layer,
            turned_HNE[: self._heads],
            turned_HNE[self._heads :],
            heads_NHE[:, both:].transpose(0, 1),
            self._call.scaling,
            self._call.window,
        )
        return plan.attend(call)


class Decoder:
    """`layers` in the order of the model's; `body` is what transformers made of them."""

    def __init__(self, body: Any, calls: Sequence[Call]) -> None:
        self._embed: nn.Module = body.embed_tokens
        self._rotary: nn.Module = body.rotary_emb
        self._norm = Norm(body.norm)
        self.layers = [Layer(*each) for each in zip(body.layers, calls, strict=True)]

    @property
    def products(self) -> Iterator[Product]:
        for layer in self.layers:
            yield from (layer.qkv, layer.out, layer.gate_up, layer.down)

    def hidden(self, tokens_N: Tensor, positions_N: Tensor, plan: Plan) -> Tensor:
        """States after the last norm, [N, D]."""
        x_ND = self._embed(tokens_N)
        cos_1NE, sin_1NE = self._rotary(x_ND[None], positions_N[None])
        signs_E = torch.ones_like(sin_1NE[0, 0])
        signs_E[: len(signs_E) // 2] = -1
        turn = Turn(cos_1NE[0, :, None], (sin_1NE[0] * signs_E)[:, None])
        for layer in self.layers:
            x_ND = layer(x_ND, turn, plan)
        return self._norm(x_ND)


class _Noting:
    """One sequence, and what its layers ask."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def attend(self, call: Call) -> Tensor:
        self.calls.append(call)
        return Sequences([_PROBE]).attend(call)


@torch.no_grad()
def find_decoder(
    body: Any, vocabulary: int, hidden: Callable[[Tensor, Tensor, Plan], Tensor]
) -> Decoder | None:
    """The same layers as those of `body`, or None where they are of another form. `hidden` computes
    with `body`: a few tokens show whether both agree."""
    if not _is_of_our_form(body):
        return None
    device = body.embed_tokens.weight.device
    positions_N = torch.arange(_PROBE, device=device)
    tokens_N = (positions_N * 7919 + 1) % vocabulary
    noting = _Noting()
    expected_ND = hidden(tokens_N, positions_N, noting)
    is_one_each = [call.layer for call in noting.calls] == list(range(len(body.layers)))
    if not is_one_each or not all(call.is_plain for call in noting.calls):
        return None
    decoder = Decoder(body, noting.calls)
    try:
        found_ND = decoder.hidden(tokens_N, positions_N, Sequences([_PROBE]))
    except RuntimeError:  # shapes that do not fit, such as heads of which a part is turned
        return None
    off = (found_ND - expected_ND).abs().max() / expected_ND.abs().max()
    return decoder if off < _AGREES.get(expected_ND.dtype, 0.1) else None


def _is_of_our_form(body: Any) -> bool:
    if _names(body) != _BODY:
        return False
    return all(
        _names(layer) == _LAYER
        and _names(layer.self_attn) in (_ATTENTION, _ATTENTION | _NORMS)
        and _names(layer.mlp) == _MLP
        and all(hasattr(each, "variance_epsilon") for each in _norms(layer))
        for layer in body.layers
    ) and hasattr(body.norm, "variance_epsilon")


def _norms(layer: Any) -> list[nn.Module]:
    attention = dict(layer.self_attn.named_children())
    of_heads = [attention[name] for name in _NORMS if name in attention]
    return [layer.input_layernorm, layer.post_attention_layernorm, *of_heads]


def _names(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}
