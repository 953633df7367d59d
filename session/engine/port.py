"""The engine as the rest of the service sees it. No torch, no Ray, no database in this file."""

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


class EngineError(Exception):
    """The input cannot be computed. The message is for the user: it names datum and key."""


class NonFiniteGradient(EngineError):
    """The gradient norm is not finite: the step was refused, weights and moments are as before."""


class PoisonedGradient(EngineError):
    """A forward_backward since the last step failed: step refused, gradient cleared."""


class WeightsMismatch(EngineError):
    """Saved tensors do not fit the model. The message names them."""


@dataclass(frozen=True, slots=True)
class BaseRef:
    """A base model's directory. `name` goes into exports; `digest` is what memory is shared by."""

    name: str
    digest: str
    path: Path

    @classmethod
    def of(cls, name: str, digest: str, path: str) -> "BaseRef":
        return cls(name, digest, Path(path))


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """`targets` are module suffixes as in PEFT (`q_proj`, `lm_head`); scaling is alpha / rank."""

    rank: int
    alpha: float
    targets: tuple[str, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class AdamParams:
    """Every field is given by the caller: defaults belong to each wire."""

    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    grad_clip_norm: float | None
    lora_plus_ratio: float | None = None


class Loss(StrEnum):
    cross_entropy = "cross_entropy"
    importance_sampling = "importance_sampling"
    ppo = "ppo"
    cispo = "cispo"
    dro = "dro"


@dataclass(frozen=True, slots=True)
class Datum:
    """One sequence. `tokens` is `[T]`; `inputs` hold `[T]` arrays (`target_tokens` int64, the rest
    float32), already shifted: position t predicts `inputs["target_tokens"][t]`. `cross_entropy`
    also takes K targets a token, `[T, K]`."""

    tokens: Tokens
    inputs: Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class LossOutput:
    """`loss` is this datum's sum over tokens; `logprobs` are those of the targets, untempered, in
    their shape."""

    loss: float
    logprobs: Floats


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One prompt, `n` samples. `weights` is a model or adapter id, or None for the plain base.

    `temperature` 0 is greedy. `top_k` -1 and `top_p` 1.0 are off. `stop_ids` None means the
    model's end-of-sequence ids; an empty tuple means that nothing but the length stops.
    `stop_strings` are matched on the decoded text. `max_tokens` 0 only scores the prompt.

    Requests of one `owner` with the same weights share what is computed of a common beginning of
    their prompts. `deterministic` shares nothing and computes apart from all others: the same
    request then gives the same bits whatever else runs.
    """

    base: BaseRef
    weights: str | None
    prompt: Tokens
    max_tokens: int
    n: int = 1
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    seed: int | None = None
    stop_ids: tuple[int, ...] | None = None
    stop_strings: tuple[str, ...] = ()
    prompt_logprobs: bool = False
    deterministic: bool = False
    owner: str = ""


@dataclass(frozen=True, slots=True)
class SampleChunk:
    """What one step brought for sample `index`. The stop token is part of `tokens`.

    `logprobs` are those of the distribution that was sampled from: tempered (untempered where
    greedy), before top-k and top-p. `stop_reason` is "stop" or "length", on the last chunk of a
    sample. The first chunk of a request that asked for them carries `prompt_logprobs`, `[T]` with
    NaN at 0; index is then -1. `cached_tokens`, on the first chunk of a request, says how many
    tokens of the prompt were not computed for it.
    """

    index: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    stop_reason: str | None = None
    prompt_logprobs: Floats | None = None
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """What an optimizer step did. `grad_norm` is the global norm before clipping."""

    step: int
    grad_norm: float
    metrics: Mapping[str, float] = field(default_factory=dict)


class Engine(Protocol):
    """Training calls of one model are awaited one after another; `sample` runs beside them.

    Every method raises `EngineError` for input that cannot be computed. `sample` fixes the weights
    when it is called, yields as tokens come, joins the running work at once, and is cancelled by
    closing the iterator. `save` returns when the weights are copied; its handle resolves when the
    files are complete, while training goes on.
    """

    async def create_model(self, model_id: str, *, base: BaseRef, lora: LoraConfig) -> None:
        """A new adapter (B is zero: it equals the base) with an empty optimizer."""
        ...

    async def forward(
        self, model_id: str, data: Sequence[Datum], *, loss: Loss, config: Mapping[str, float]
    ) -> list[LossOutput]: ...

    async def forward_backward(
        self, model_id: str, data: Sequence[Datum], *, loss: Loss, config: Mapping[str, float]
    ) -> list[LossOutput]:
        """Adds to the gradient; a failure poisons it until it is cleared."""
        ...

    async def optim_step(self, model_id: str, params: AdamParams) -> StepResult: ...

    async def clear_gradient(self, model_id: str) -> None: ...

    async def load(self, model_id: str, source: Path, *, with_optimizer: bool) -> None:
        """Take weights from `source/checkpoints/hf`, and the rest from `source/state` if asked.

        Clears the gradient first; a stored pending gradient comes back with the optimizer.
        """
        ...

    async def save(self, model_id: str, target: Path, *, with_optimizer: bool) -> Awaitable[None]:
        """Write `checkpoints/hf` (a PEFT adapter) and, if asked, `state` under `target`."""
        ...

    async def load_adapter(self, adapter_id: str, *, base: BaseRef, source: Path) -> None:
        """Make a PEFT adapter directory available to `sample` under this id."""
        ...

    def sample(self, request: SampleRequest) -> AsyncIterator[SampleChunk]: ...

    async def drop(self, weights_id: str) -> None:
        """Forget a model or an adapter; unknown ids are ignored."""
        ...

    async def close(self) -> None: ...
