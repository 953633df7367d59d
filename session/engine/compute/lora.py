"""Our own LoRA: layers that add whatever adapter is in use, and adapters that never change.

Shapes: I input features, O output features, R rank.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor, nn

from exporters.peft_adapter import tensor_key
from session.engine.port import EngineError, LoraConfig

MAX_RANK = 256
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Adapter:
    """Tensors by PEFT name. A step makes a new adapter, so a reference to one is a snapshot."""

    rank: int
    alpha: float
    targets: tuple[str, ...]
    tensors: Tensors

    @property
    def scaling(self) -> float:
        return self.alpha / self.rank


class Slot:
    """The adapter that the layers of one base model add now; None is the plain base."""

    def __init__(self) -> None:
        self.adapter: Adapter | None = None

    @contextmanager
    def using(self, adapter: Adapter | None) -> Iterator[None]:
        previous, self.adapter = self.adapter, adapter
        try:
            yield
        finally:
            self.adapter = previous


class LoraLinear(nn.Module):
    """y = W x + (alpha / rank) B A x, exactly W x where the adapter in use does not name it."""

    def __init__(self, name: str, linear: nn.Linear, slot: Slot) -> None:
        super().__init__()
        self.linear = linear
        self.slot = slot
        self.a_name, self.b_name = tensor_key(name, "A"), tensor_key(name, "B")

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        adapter = self.slot.adapter
        if adapter is None or self.a_name not in adapter.tensors:
            return y
        a_RI, b_OR = adapter.tensors[self.a_name], adapter.tensors[self.b_name]
        return y + F.linear(F.linear(x, a_RI), b_OR) * adapter.scaling

    def shapes(self, rank: int) -> dict[str, tuple[int, int]]:
        return {
            self.a_name: (rank, self.linear.in_features),
            self.b_name: (self.linear.out_features, rank),
        }


def wrap_linears(model: nn.Module, slot: Slot) -> dict[str, LoraLinear]:
    """Put a LoRA layer in the place of every linear layer; returns them by full name."""
    found = [(name, m) for name, m in model.named_modules() if type(m) is nn.Linear]
    layers = {name: LoraLinear(name, linear, slot) for name, linear in found}
    for name, layer in layers.items():
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer)
    return layers


def targeted(layers: Mapping[str, LoraLinear], targets: tuple[str, ...]) -> list[LoraLinear]:
    """The layers that the suffixes name, in the model's order. Each suffix must name one."""
    if not targets:
        raise EngineError("lora.targets is empty")
    for target in targets:
        if not any(_matches(name, target) for name in layers):
            known = ", ".join(sorted({name.rpartition(".")[2] for name in layers}))
            raise EngineError(
                f"lora.targets: {target!r} is no linear layer of this model (it has {known})"
            )
    return [
        layer for name, layer in layers.items() if any(_matches(name, target) for target in targets)
    ]


def new_adapter(layers: Mapping[str, LoraLinear], lora: LoraConfig) -> Adapter:
    """A as `nn.Linear` initialises it, from the seed; B is zero, so it changes nothing yet."""
    if not 1 <= lora.rank <= MAX_RANK:
        raise EngineError(f"lora.rank is {lora.rank}, not between 1 and {MAX_RANK}")
    if not (math.isfinite(lora.alpha) and lora.alpha > 0):
        raise EngineError(f"lora.alpha is {lora.alpha}, not a positive number")
    generator = torch.Generator().manual_seed(lora.seed % 2**64)
    tensors: dict[str, Tensor] = {}
    for layer in targeted(layers, lora.targets):
        for name, shape in layer.shapes(lora.rank).items():
            tensors[name] = torch.zeros(shape)
        bound = 1 / math.sqrt(layer.linear.in_features)
        tensors[layer.a_name].uniform_(-bound, bound, generator=generator)
    return Adapter(lora.rank, lora.alpha, lora.targets, tensors)


def map_tensors(function: Callable[..., Tensor], *tensors: Tensors) -> dict[str, Tensor]:
    """Apply to the tensors of each name."""
    return {name: function(*(each[name] for each in tensors)) for name in tensors[0]}


def _matches(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")
