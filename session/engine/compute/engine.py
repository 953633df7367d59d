"""Everything that an engine knows: base models, models in training, adapters to sample from.

Synchronous and not thread-safe; whoever holds it runs its calls one at a time. Work that takes long
is an iterator, of which each item is one turn.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from session.engine.compute import weights
from session.engine.compute.batch import check, collate, pack
from session.engine.compute.lora import Adapter, new_adapter
from session.engine.compute.losses import complete_config
from session.engine.compute.memory import sizes_in_memory_errors
from session.engine.compute.model import BaseModel, load_base
from session.engine.compute.optim import check_params
from session.engine.compute.sampler import Ticket
from session.engine.compute.sampling import Sampling
from session.engine.compute.training import Training, add_into, run_batch
from session.engine.port import (
    AdamParams,
    BaseRef,
    Datum,
    EngineError,
    LoraConfig,
    Loss,
    LossOutput,
    NonFiniteGradient,
    PoisonedGradient,
    SampleRequest,
    StepResult,
)

Results = dict[int, LossOutput]


class Compute:
    def __init__(
        self,
        *,
        micro_batch_tokens: int,
        activation_bytes: int = 2 * 2**30,
        cache_bytes: int = 2 * 2**30,
        packed_bytes: int = 2**30,
        dtype: str = "float32",
        device: str = "cpu",
    ) -> None:
        self.sampling = Sampling(chunk_tokens=micro_batch_tokens, cache_bytes=cache_bytes)
        self._micro_batch_tokens = micro_batch_tokens
        self._activation_bytes = activation_bytes
        self._packed_bytes = packed_bytes
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._device = _usable(device)
        self._bases: dict[str, BaseModel] = {}
        self._models: dict[str, Training] = {}
        self._adapters: dict[str, tuple[BaseModel, Adapter]] = {}

    def create_model(self, model_id: str, base: BaseRef, lora: LoraConfig) -> None:
        if model_id in self._models:
            raise EngineError(f"model {model_id!r} exists already")
        loaded = self._base(base)
        adapter = new_adapter(loaded.layers, lora, dtype=loaded.precision, device=loaded.device)
        self._models[model_id] = Training.fresh(loaded, lora, adapter)

    def forward(
        self, model_id: str, data: Sequence[Datum], loss: Loss, config: Mapping[str, float]
    ) -> Iterator[Results]:
        training = self.model(model_id)
        for results, _ in self._passes(training, data, loss, config, with_gradient=False):
            yield results

    def forward_backward(
        self, model_id: str, data: Sequence[Datum], loss: Loss, config: Mapping[str, float]
    ) -> Iterator[Results]:
        """Poisoned from the first turn to the last: whatever ends it early leaves it so."""
        training = self.model(model_id)
        self._models[model_id] = replace(training, poisoned=True)
        gradient: dict[str, Tensor] = {}
        for results, found in self._passes(training, data, loss, config, with_gradient=True):
            add_into(gradient, found)
            yield results
        self.model(model_id)  # raises where it was dropped meanwhile
        self._models[model_id] = training.plus_gradient(gradient)

    def _passes(
        self,
        training: Training,
        data: Sequence[Datum],
        loss: Loss,
        config: Mapping[str, float],
        *,
        with_gradient: bool,
    ) -> Iterator[tuple[Results, dict[str, Tensor]]]:
        base, complete = training.base, complete_config(loss, config)
        for rows in pack(check(base, data, loss), self._micro_batch_tokens):
            keep = sum(len(row.tokens) for row in rows) * base.activation_bytes
            with (
                sizes_in_memory_errors(rows),
                base.recompute.on(when=keep > self._activation_bytes),
            ):
                found = run_batch(
                    base,
                    training.adapter,
                    collate(rows, base),
                    loss=loss,
                    config=complete,
                    with_gradient=with_gradient,
                )
            yield found

    def optim_step(self, model_id: str, params: AdamParams) -> StepResult:
        training = self.model(model_id)
        if training.poisoned:
            self.clear_gradient(model_id)
            raise PoisonedGradient(
                "a forward_backward since the last step failed: step refused, gradient cleared"
            )
        check_params(params, training.base.precision)
        try:
            after, result = training.stepped(params)
        except NonFiniteGradient:
            self.clear_gradient(model_id)
            raise
        self._models[model_id] = after
        return result

    def clear_gradient(self, model_id: str) -> None:
        self._models[model_id] = self.model(model_id).without_gradient()

    def load(self, model_id: str, source: Path, *, with_optimizer: bool) -> None:
        self.clear_gradient(model_id)
        training = self.model(model_id)
        self._models[model_id] = weights.restore(training, source, with_optimizer=with_optimizer)

    def load_adapter(self, adapter_id: str, base: BaseRef, source: Path) -> None:
        loaded = self._base(base)
        self._adapters[adapter_id] = loaded, weights.read_adapter(loaded, source)

    def drop(self, weights_id: str) -> None:
        self._models.pop(weights_id, None)
        self._adapters.pop(weights_id, None)

    def model(self, model_id: str) -> Training:
        found = self._models.get(model_id)
        if found is None:
            raise EngineError(f"no model {model_id!r} in this engine")
        return found

    def weights(self, weights_id: str | None) -> Adapter | None:
        """What a sample admitted now computes with."""
        return None if weights_id is None else self._adapted(weights_id)[1]

    def weights_of(self, request: SampleRequest) -> Adapter | None:
        """The same, where they are of the base that the request names: others may fit as well."""
        if request.weights is None:
            return None
        base, adapter = self._adapted(request.weights)
        if base.ref.digest != request.base.digest:
            raise EngineError(
                f"weights {request.weights!r} are of base {base.ref.name!r} ({base.ref.digest}), "
                f"not of {request.base.name!r} ({request.base.digest})"
            )
        return adapter

    def _adapted(self, weights_id: str) -> tuple[BaseModel, Adapter]:
        training = self._models.get(weights_id)
        if training is not None:
            return training.base, training.adapter
        if weights_id not in self._adapters:
            raise EngineError(f"no weights {weights_id!r} in this engine")
        return self._adapters[weights_id]

    def join(self, request: SampleRequest, adapter: Adapter | None) -> Ticket:
        base = self._base(request.base)
        base.prepare_sampling(self._packed_bytes)
        return self.sampling.join(base, adapter, request)

    def _base(self, ref: BaseRef) -> BaseModel:
        if ref.digest not in self._bases:
            self._bases[ref.digest] = load_base(ref, dtype=self._dtype, device=self._device)
        return self._bases[ref.digest]


def _usable(device: str) -> str:
    """The device, which holds a tensor already: one that is missing would fail every session."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise EngineError(f"torch cannot use the device {device!r} ({reason})") from None
    return device
