"""One operation on the engine: the wire's form in, the wire's result out. No database here."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from registry.usage.model import Category
from session import wire
from session.engine.port import (
    AdamParams,
    Datum,
    Engine,
    EngineError,
    Loss,
    LossOutput,
    NonFiniteGradient,
    PoisonedGradient,
)

_OF_A_SAVE = ("loss", "loss_per_token")


@dataclass(frozen=True, slots=True)
class Outcome:
    """`step` and `measured` are set by an optimizer step only."""

    result: wire.Result
    counts: Mapping[Category, int] = field(default_factory=dict)
    step: int | None = None
    measured: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Tally:
    """What the forward_backward calls since the last step add up to."""

    loss: float = 0.0
    tokens: int = 0
    weighted: int = 0

    def add(self, data: Sequence[Datum], outputs: Sequence[LossOutput]) -> None:
        self.loss += sum(output.loss for output in outputs)
        self.tokens += sum(datum.tokens.size for datum in data)
        self.weighted += sum(_weighted(datum) for datum in data)

    def measured(self) -> dict[str, float]:
        """`loss` is the sum as optimised; per token it is divided by the tokens of weight not 0."""
        per_token = self.loss / self.weighted if self.weighted else 0.0
        return {"loss": self.loss, "loss_per_token": per_token, "tokens": float(self.tokens)}


def _weighted(datum: Datum) -> int:
    weights = datum.inputs.get("weights")
    return datum.tokens.size if weights is None else int((weights != 0).sum())


class Training:
    """The calls that change or read one session's model, in the order of its log."""

    def __init__(self, engine: Engine, session_id: str) -> None:
        self._engine = engine
        self._id = session_id
        self.tally = Tally()
        self.last_measured: dict[str, float] = {}

    async def forward(self, body: wire.Forward) -> Outcome:
        data, loss = _data(body.data), _loss(body.loss)
        outputs = await self._engine.forward(self._id, data, loss=loss, config=body.config)
        return _losses(data, outputs)

    async def forward_backward(self, body: wire.ForwardBackward) -> Outcome:
        """Whoever calls this poisons the gradient where it fails."""
        data, loss = _data(body.data), _loss(body.loss)
        outputs = await self._engine.forward_backward(self._id, data, loss=loss, config=body.config)
        self.tally.add(data, outputs)
        return _losses(data, outputs)

    async def poison(self) -> None:
        """Have the next step refused. An empty batch is what every engine refuses."""
        try:
            await self._engine.forward_backward(self._id, [], loss=Loss.cross_entropy, config={})
        except EngineError:
            return

    async def optim_step(self, body: wire.OptimStep) -> Outcome:
        """The tally goes with the gradient: a refusal that keeps the one keeps the other."""
        _check_adam(body)
        try:
            done = await self._engine.optim_step(self._id, _adam(body))
        except (PoisonedGradient, NonFiniteGradient):
            self.tally = Tally()
            raise
        measured = {
            **self.tally.measured(),
            "grad_norm": done.grad_norm,
            "learning_rate": body.learning_rate,
        }
        self.tally = Tally()
        metrics = {**measured, **done.metrics, "step": float(done.step)}
        kept = {name: value for name, value in measured.items() if math.isfinite(value)}
        self.last_measured = {name: kept[name] for name in _OF_A_SAVE if name in kept}
        return Outcome(wire.Result(metrics=metrics), step=done.step, measured=kept)

    async def clear_gradient(self, body: wire.ClearGradient) -> Outcome:
        await self._engine.clear_gradient(self._id)
        self.tally = Tally()
        return Outcome(wire.Result())

    async def load(self, source: Path, *, with_optimizer: bool) -> None:
        """A gradient that comes with the weights is of batches that this tally never saw."""
        self.tally = Tally()  # first: a load that fails has cleared the gradient too
        await self._engine.load(self._id, source, with_optimizer=with_optimizer)


def _data(data: Sequence[wire.Datum]) -> list[Datum]:
    read = []
    for index, datum in enumerate(data):
        inputs = {}
        for key, tensor in {"tokens": datum.tokens, **datum.inputs}.items():
            try:
                inputs[key] = tensor.array()
            except wire.WireError as error:
                raise EngineError(f"datum {index}: {key}: {error}") from None
        read.append(Datum(inputs.pop("tokens"), inputs))
    return read


def _loss(name: str) -> Loss:
    if name not in set(Loss):
        known = ", ".join(Loss)
        raise EngineError(f"loss: {name!r} is unknown; known are {known}")
    return Loss(name)


def _losses(data: Sequence[Datum], outputs: Sequence[LossOutput]) -> Outcome:
    tokens = sum(datum.tokens.size for datum in data)
    result = wire.Result(
        metrics={"loss:sum": sum(output.loss for output in outputs), "tokens:sum": float(tokens)},
        data=[wire.DatumResult(o.loss, wire.Tensor.of(o.logprobs)) for o in outputs],
        tokens=tokens,
    )
    return Outcome(result, {Category.train: tokens})


def _adam(body: wire.OptimStep) -> AdamParams:
    return AdamParams(
        learning_rate=body.learning_rate,
        beta1=body.beta1,
        beta2=body.beta2,
        eps=body.eps,
        weight_decay=body.weight_decay,
        grad_clip_norm=body.grad_clip_norm or None,
        lora_plus_ratio=body.lora_plus_ratio,
    )


def _check_adam(body: wire.OptimStep) -> None:
    """Ranges by field; NaN fails every comparison and so is refused too."""
    inf = math.inf
    ranges = (
        ("learning_rate", body.learning_rate, 0 <= body.learning_rate < inf, ">= 0"),
        ("beta1", body.beta1, 0 <= body.beta1 < 1, "at least 0 and below 1"),
        ("beta2", body.beta2, 0 <= body.beta2 < 1, "at least 0 and below 1"),
        ("eps", body.eps, 0 < body.eps < inf, "> 0"),
        ("weight_decay", body.weight_decay, 0 <= body.weight_decay < inf, ">= 0"),
        ("grad_clip_norm", body.grad_clip_norm, 0 <= (body.grad_clip_norm or 0) < inf, ">= 0"),
        ("lora_plus_ratio", body.lora_plus_ratio, 0 < (body.lora_plus_ratio or 1) < inf, "> 0"),
    )
    for field_name, value, is_fine, wanted in ranges:
        if not is_fine:
            raise EngineError(f"{field_name}: {value} is not {wanted}")
