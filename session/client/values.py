"""What calls take and give back. Names and defaults follow the vendors' clients."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from session import wire
from session.client.checks import mapping, number, of_type, text, whole
from session.client.errors import InvalidInput
from session.client.tensors import ModelInput, TensorData, TensorLike, tensor_data

DEFAULT_MAX_TOKENS = 256

_SAMPLED = ("target_tokens", "logprobs", "advantages")
_REQUIRED: Mapping[str, Sequence[str]] = {
    "cross_entropy": ("target_tokens",),
    "importance_sampling": _SAMPLED,
    "ppo": _SAMPLED,
    "cispo": _SAMPLED,
    "dro": _SAMPLED,
}


class Datum:
    """One example. Position t of `model_input` predicts `target_tokens[t]`: shift before.

    Lists, numpy arrays and torch tensors become TensorData: `target_tokens` of int64, any other
    input of float32.
    """

    def __init__(self, model_input: ModelInput, loss_fn_inputs: Mapping[str, TensorLike]) -> None:
        self.model_input = of_type(
            "model_input",
            model_input,
            ModelInput,
            "a ModelInput, such as ModelInput.from_ints(ids)",
        )
        inputs = mapping("loss_fn_inputs", loss_fn_inputs)
        self.loss_fn_inputs = {name: _typed(name, value) for name, value in inputs.items()}

    def __repr__(self) -> str:
        return f"Datum({self.model_input.length} tokens, {sorted(self.loss_fn_inputs)})"


def _typed(name: str, value: TensorLike) -> TensorData:
    try:
        found = tensor_data(value)
    except (InvalidInput, ValueError) as error:
        raise InvalidInput(f"loss_fn_inputs[{name!r}]: {error}") from error
    if name == "target_tokens":
        if found.dtype != "int64":
            raise InvalidInput("loss_fn_inputs['target_tokens'] must hold integers")
        return found
    return TensorData(found.data, "float32", found.shape)


def wire_data(data: Sequence[Datum], loss_fn: str) -> list[wire.Datum]:
    """Check and pack a batch, so that later changes of the caller's arrays do not matter."""
    if isinstance(data, str) or not isinstance(data, Sequence):
        raise InvalidInput(f"data must be a list of Datum, not {type(data).__name__}")
    data = [of_type(f"data[{i}]", datum, Datum, "a Datum") for i, datum in enumerate(data)]
    if not data:
        raise InvalidInput("data is empty: a call needs at least one Datum")
    text("loss_fn", loss_fn)
    return [_packed(datum, index, loss_fn) for index, datum in enumerate(data)]


def _packed(datum: Datum, index: int, loss_fn: str) -> wire.Datum:
    where = f"data[{index}]"
    tokens = datum.model_input.to_wire(f"{where}.model_input")
    length = datum.model_input.length
    for name in _REQUIRED.get(loss_fn, ()):
        if name not in datum.loss_fn_inputs:
            raise InvalidInput(f"{where}.loss_fn_inputs lacks {name!r}, which {loss_fn} needs")
    inputs = {}
    for name, tensor in datum.loss_fn_inputs.items():
        array = tensor.to_numpy()
        if array.ndim == 0 or len(array) != length:
            found = len(array) if array.ndim else "a single number"
            raise InvalidInput(
                f"{where}.loss_fn_inputs[{name!r}] has length {found}, "
                f"but model_input has {length} tokens"
            )
        inputs[name] = wire.Tensor.of(array)
    return wire.Datum(tokens, inputs)


@dataclass(frozen=True)
class AdamParams:
    """One AdamW step. `grad_clip_norm` 0 is off."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0
    lora_plus_ratio: float | None = None

    def to_wire(self) -> wire.OptimStep:
        given = {name: number(name, value) for name, value in self._given().items()}
        if not (math.isfinite(given["learning_rate"]) and given["learning_rate"] >= 0):
            raise InvalidInput(f"learning_rate must be 0 or more, not {self.learning_rate}")
        if not given["grad_clip_norm"] >= 0:
            raise InvalidInput(f"grad_clip_norm must be 0 or more, not {self.grad_clip_norm}")
        clip_norm = given.pop("grad_clip_norm") or None
        return wire.OptimStep(**given, grad_clip_norm=clip_norm)

    def _given(self) -> dict[str, Any]:
        """All but what is left out by None, which only `lora_plus_ratio` can be."""
        fields = dict(vars(self))
        if self.lora_plus_ratio is None:
            del fields["lora_plus_ratio"]
        return fields


@dataclass(frozen=True)
class SamplingParams:
    """`max_tokens` None is 256. `stop` None is the model's own end tokens; strings or ids add to
    those; an empty list means that only the length stops. `top_k` -1 is off. `deterministic`
    computes apart from all other requests, which takes longer: the same request for the same
    weights then gives the same bits on one machine."""

    max_tokens: int | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    seed: int | None = None
    stop: str | Sequence[str] | Sequence[int] | None = None
    deterministic: bool = False

    def __post_init__(self) -> None:
        for name in ("max_tokens", "top_k", "seed"):
            value = getattr(self, name)
            if value is not None:
                whole(name, value)
        number("temperature", self.temperature)
        number("top_p", self.top_p)
        if self.max_tokens is not None and self.max_tokens < 0:
            raise InvalidInput(f"max_tokens must be 0 or more, not {self.max_tokens}")
        if not self.temperature >= 0:
            raise InvalidInput(f"temperature must be 0 or more, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise InvalidInput(f"top_p must be above 0 and at most 1, not {self.top_p}")
        if self.top_k == 0 or self.top_k < -1:
            raise InvalidInput(f"top_k must be -1 (off) or at least 1, not {self.top_k}")


@dataclass(frozen=True)
class ForwardBackwardOutput:
    """`loss_fn_outputs` has one mapping a datum, with `logprobs` of the target tokens."""

    loss_fn_outputs: list[dict[str, TensorData]]
    metrics: dict[str, float]

    @property
    def loss(self) -> float:
        """The sum over all tokens of all datums."""
        return self.metrics["loss:sum"]

    @classmethod
    def of(cls, result: wire.Result) -> "ForwardBackwardOutput":
        outputs = [
            {"logprobs": TensorData.from_numpy(found.logprobs.array())} for found in result.data
        ]
        total = {"loss:sum": math.fsum(found.loss for found in result.data)}
        return cls(outputs, total | result.metrics)


@dataclass(frozen=True)
class OptimStepResponse:
    metrics: dict[str, float]

    @property
    def step(self) -> int | None:
        """How many steps the session has made, where the service says so."""
        step = self.metrics.get("step")
        return None if step is None else int(step)


@dataclass(frozen=True)
class SaveResponse:
    """The version that was registered; `ref` is GROUP@VERSION."""

    ref: str
    operation_id: str
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def group(self) -> str:
        return split_ref(self.ref)[0]

    @property
    def version(self) -> int:
        return split_ref(self.ref)[1]


@dataclass(frozen=True)
class SampledSequence:
    """`stop_reason` is `stop` or `length`. A stop token or string is part of `tokens`."""

    tokens: list[int]
    logprobs: list[float]
    stop_reason: str


@dataclass(frozen=True)
class SampleResponse:
    sequences: list[SampledSequence]
    prompt_logprobs: list[float | None] | None = None

    @classmethod
    def of(cls, samples: wire.Samples) -> "SampleResponse":
        sequences = [
            SampledSequence(
                found.tokens.array().tolist(), found.logprobs.array().tolist(), found.stop_reason
            )
            for found in samples.sequences
        ]
        scored = samples.prompt_logprobs
        if scored is None:
            return cls(sequences)
        return cls(
            sequences, [None if np.isnan(value) else float(value) for value in scored.array()]
        )


def version_place(ref: str) -> tuple[str, str]:
    """Group and number of GROUP@VERSION, or group and alias of GROUP:ALIAS."""
    text("a version", ref)
    group, colon, alias = ref.partition(":")
    if colon and group and "@" not in group and alias[:1].isalpha():
        return group, alias
    group, number = split_ref(ref)
    return group, str(number)


def split_ref(ref: str) -> tuple[str, int]:
    """GROUP@VERSION in its two parts."""
    text("a version", ref)
    group, _, version = ref.rpartition("@")
    if not group or not version.isascii() or not version.isdigit():
        raise InvalidInput(f"{ref!r} is not a version: write GROUP@VERSION, such as 'facts@3'")
    return group, int(version)
