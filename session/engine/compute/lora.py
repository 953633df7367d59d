"""Our own LoRA: layers that add whatever adapter is in use, and adapters that never change.

Shapes: N rows, I input features, O output features, R rank.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor, nn

from exporters.peft_adapter import tensor_key
from session.engine.compute.numeric import is_finite, is_whole
from session.engine.compute.packed import Packed
from session.engine.port import EngineError, LoraConfig

MAX_RANK = 256
MAX_ALPHA = 1e9  # keeps products with it within float32
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Adapter:
    """Tensors by PEFT name. A step makes a new adapter, so a reference to one is a snapshot."""

    rank: int
    alpha: float
    targets: tuple[str, ...]
    tensors: Tensors

    @property
    def scaling(self) -> float:
        return self.alpha / self.rank


@dataclass(frozen=True, slots=True)
class Range:
    """Rows of a pass that use one adapter."""

    start: int
    stop: int
    adapter: Adapter


class Slot:
    """The adapter that the layers of one base model add now; None is the plain base. `ranges` are
    those of a pass whose rows use several, and belong to sampling: no gradient goes through."""

    def __init__(self) -> None:
        self.adapter: Adapter | None = None
        self.ranges: Sequence[Range] = ()
        self.is_sampling = False

    @contextmanager
    def using(self, adapter: Adapter | None) -> Iterator[None]:
        previous, self.adapter = self.adapter, adapter
        try:
            yield
        finally:
            self.adapter = previous

    @contextmanager
    def using_ranges(self, ranges: Sequence[Range]) -> Iterator[None]:
        self.ranges, self.is_sampling = ranges, True
        try:
            yield
        finally:
            self.ranges, self.is_sampling = (), False


@dataclass(frozen=True, slots=True)
class Pair:
    """What an adapter adds to one linear layer."""

    a_RI: Tensor
    b_OR: Tensor
    scaling: float

    def down(self, x_NI: Tensor) -> Tensor:
        """(alpha / rank) A x, [N, R], in the adapter's own precision."""
        return F.linear(x_NI.to(self.a_RI.dtype), self.a_RI) * self.scaling

    def add(self, y_NO: Tensor, down_NR: Tensor) -> Tensor:
        """y + B down, rounded once to the type of y; y itself may be overwritten."""
        return y_NO.to(self.b_OR.dtype).addmm_(down_NR, self.b_OR.t()).to(y_NO.dtype)

    def pull_back(
        self, x_NI: Tensor, down_NR: Tensor, slopes_NO: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients by `down` (times the scaling), A and B, where `slopes_NO` is that by y."""
        slopes_NO = slopes_NO.to(self.b_OR.dtype)
        by_down_NR = (slopes_NO @ self.b_OR).mul_(self.scaling)
        return by_down_NR, by_down_NR.t() @ x_NI.to(self.a_RI.dtype), slopes_NO.t() @ down_NR


class LoraLinear(nn.Module):
    """y = W x + (alpha / rank) B A x, exactly W x where the adapter in use does not name it."""

    def __init__(self, name: str, linear: nn.Linear, slot: Slot) -> None:
        super().__init__()
        self.linear = linear
        self.slot = slot
        self.packed: Packed | None = None
        self.a_name, self.b_name = tensor_key(name, "A"), tensor_key(name, "B")

    def forward(self, x: Tensor) -> Tensor:
        if self.slot.is_sampling:
            return self._by_ranges(x)
        pair = self.pair
        if pair is None:
            y: Tensor = self.linear(x)
            return y
        x_NI = x.reshape(-1, x.shape[-1])
        y_NO: Tensor = _Adapted.apply(  # type: ignore[no-untyped-call]  # torch's
            x_NI, self.linear, pair.a_RI, pair.b_OR, pair.scaling
        )
        return y_NO.view(*x.shape[:-1], self.linear.out_features)

    @property
    def pair(self) -> Pair | None:
        """Of the adapter in use, where that names this layer."""
        return None if self.slot.adapter is None else self._pair_of(self.slot.adapter)

    def _pair_of(self, adapter: Adapter) -> Pair | None:
        if self.a_name not in adapter.tensors:
            return None
        return Pair(adapter.tensors[self.a_name], adapter.tensors[self.b_name], adapter.scaling)

    def _by_ranges(self, x: Tensor) -> Tensor:
        x_NI = x.reshape(-1, x.shape[-1])
        packed = self.packed if self.packed and self.packed.suits(x_NI) else None
        y: Tensor = packed(x) if packed else self.linear(x)
        self.adapt(x_NI, y.view(-1, y.shape[-1]))
        return y

    def adapt(self, x_NI: Tensor, y_NO: Tensor) -> None:
        """Add to `y_NO` what the adapter of each range of rows adds."""
        for each in self.slot.ranges:
            if (pair := self._pair_of(each.adapter)) is not None:
                part_NO = y_NO[each.start : each.stop]
                added_NO = pair.add(part_NO, pair.down(x_NI[each.start : each.stop]))
                if added_NO is not part_NO:
                    part_NO.copy_(added_NO)

    def shapes(self, rank: int) -> dict[str, tuple[int, int]]:
        return {
            self.a_name: (rank, self.linear.in_features),
            self.b_name: (self.linear.out_features, rank),
        }


class Layers(dict[str, LoraLinear]):
    """By full name, in the model's order. `experts` are tensors of many experts each, which no
    adapter of ours can change."""

    experts: frozenset[str] = frozenset()


class _Adapted(torch.autograd.Function):
    """A linear layer with its adapter. Written out, it keeps x once, makes no copy of y, and adds
    both parts of the gradient by x in place; autograd would do each of these apart."""

    @staticmethod
    def forward(
        ctx: Any, x_NI: Tensor, linear: nn.Linear, a_RI: Tensor, b_OR: Tensor, scaling: float
    ) -> Tensor:
        pair = Pair(a_RI, b_OR, scaling)
        down_NR = pair.down(x_NI)
        ctx.linear, ctx.scaling = linear, scaling
        ctx.save_for_backward(x_NI, down_NR, a_RI, b_OR)
        return pair.add(linear(x_NI), down_NR)

    @staticmethod
    def backward(ctx: Any, slopes_NO: Tensor) -> tuple[Tensor | None, ...]:
        x_NI, down_NR, a_RI, b_OR = ctx.saved_tensors
        by_down_NR, by_a, by_b = Pair(a_RI, b_OR, ctx.scaling).pull_back(x_NI, down_NR, slopes_NO)
        by_x_NI = slopes_NO @ ctx.linear.weight if ctx.needs_input_grad[0] else None
        if by_x_NI is not None:
            by_x_NI = by_x_NI.to(a_RI.dtype).addmm_(by_down_NR, a_RI).to(x_NI.dtype)
        return by_x_NI, None, by_a, by_b, None


def wrap_linears(model: nn.Module, slot: Slot) -> Layers:
    """Put a LoRA layer in the place of every linear layer; returns them by full name."""
    found = [(name, m) for name, m in model.named_modules() if type(m) is nn.Linear]
    layers = Layers({name: LoraLinear(name, linear, slot) for name, linear in found})
    layers.experts = frozenset(name for name, each in model.named_parameters() if each.ndim == 3)
    for name, layer in layers.items():
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer)
    return layers


def targeted(layers: Layers, targets: tuple[str, ...]) -> list[LoraLinear]:
    """The layers that the suffixes name, in the model's order. Each suffix must name one."""
    if not targets:
        raise EngineError("lora.targets is empty")
    for target in targets:
        if not any(_matches(name, target) for name in layers):
            if any(_matches(name, target) for name in layers.experts):
                raise EngineError(
                    f"lora.targets: {target!r} holds the experts of this model in one tensor, and "
                    "only linear layers can be trained"
                )
            known = ", ".join(sorted({name.rpartition(".")[2] for name in layers}))
            raise EngineError(
                f"lora.targets: {target!r} is no linear layer of this model (it has {known})"
            )
    return [
        layer for name, layer in layers.items() if any(_matches(name, target) for target in targets)
    ]


def new_adapter(
    layers: Layers,
    lora: LoraConfig,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Adapter:
    """A as `nn.Linear` initialises it, from the seed; B is zero, so it changes nothing yet."""
    if not (is_whole(lora.rank) and 1 <= lora.rank <= MAX_RANK):
        raise EngineError(
            f"lora.rank is {lora.rank!r}, not a whole number between 1 and {MAX_RANK}"
        )
    if not (is_finite(lora.alpha) and 0 < lora.alpha <= MAX_ALPHA):
        raise EngineError(
            f"lora.alpha is {lora.alpha!r}, not a positive number up to {MAX_ALPHA:g}"
        )
    generator = torch.Generator().manual_seed(lora.seed % 2**64)
    tensors: dict[str, Tensor] = {}
    for layer in targeted(layers, lora.targets):
        for name, shape in layer.shapes(lora.rank).items():
            tensors[name] = torch.zeros(shape)
        bound = 1 / math.sqrt(layer.linear.in_features)
        tensors[layer.a_name].uniform_(-bound, bound, generator=generator)
    placed = {name: tensor.to(device, dtype) for name, tensor in tensors.items()}
    return Adapter(lora.rank, lora.alpha, lora.targets, placed)


def map_tensors(function: Callable[..., Tensor], *tensors: Tensors) -> dict[str, Tensor]:
    """Apply to the tensors of each name."""
    return {name: function(*(each[name] for each in tensors)) for name in tensors[0]}


def _matches(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")
