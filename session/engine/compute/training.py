"""A model in training: immutable, so that the reference held by a save or a sample is a snapshot.

Shapes: N tokens of the batch, K targets a token, D hidden size.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from session.engine.compute.attention import Sequences
from session.engine.compute.batch import TARGETS, Batch, Row
from session.engine.compute.head import Scored, score
from session.engine.compute.lora import Adapter, Tensors, map_tensors
from session.engine.compute.losses import FORMULAS
from session.engine.compute.model import BaseModel
from session.engine.compute.optim import Moments, adamw_step
from session.engine.port import AdamParams, EngineError, LoraConfig, Loss, LossOutput, StepResult


@dataclass(frozen=True, slots=True)
class Training:
    base: BaseModel
    lora: LoraConfig
    adapter: Adapter
    moments: Moments
    step: int = 0
    gradient: Tensors | None = None
    poisoned: bool = False

    @classmethod
    def fresh(cls, base: BaseModel, lora: LoraConfig, adapter: Adapter) -> "Training":
        return cls(base, lora, adapter, Moments.fresh(adapter.tensors))

    def without_gradient(self) -> "Training":
        return replace(self, gradient=None, poisoned=False)

    def plus_gradient(self, gradient: Tensors) -> "Training":
        if self.gradient is not None:
            names = list(self.gradient)
            both = torch._foreach_add(
                list(self.gradient.values()), [gradient[name] for name in names]
            )
            gradient = dict(zip(names, both, strict=True))
        return replace(self, gradient=gradient)

    def stepped(self, params: AdamParams) -> tuple["Training", StepResult]:
        if self.gradient is None:
            raise EngineError("no gradient: call forward_backward first")
        tensors, moments, norm = adamw_step(
            self.adapter.tensors, self.gradient, self.moments, params
        )
        after = replace(
            self.without_gradient(),
            adapter=replace(self.adapter, tensors=tensors),
            moments=moments,
            step=self.step + 1,
        )
        return after, StepResult(after.step, norm, {"learning_rate": params.learning_rate})


def add_into(sums: dict[str, Tensor], gradient: dict[str, Tensor]) -> None:
    """In place: only for sums that nobody else holds."""
    if sums:
        torch._foreach_add_(list(sums.values()), [gradient[name] for name in sums])
    else:
        sums.update(gradient)


def run_batch(
    base: BaseModel,
    adapter: Adapter,
    batch: Batch,
    *,
    loss: Loss,
    config: Mapping[str, float],
    with_gradient: bool,
) -> tuple[dict[int, LossOutput], dict[str, Tensor]]:
    """Results by datum, and the gradient of their sum; none where it is not asked for.

    `forward` builds the graph too and drops it: without one, torch may pick other kernels, and the
    two would no longer agree to the last bit.
    """
    leaves = replace(
        adapter, tensors=map_tensors(lambda t: t.detach().requires_grad_(), adapter.tensors)
    )
    with base.slot.using(leaves):
        hidden_ND = base.hidden(batch.tokens_N, batch.positions_N, Sequences(batch.lengths))
        scored = score(
            base.head,
            hidden_ND.detach(),
            batch.inputs_NK,
            lambda logprobs, inputs: FORMULAS[loss].terms(logprobs, inputs, config),
            with_slopes=with_gradient,
        )
        results = _outputs(batch, scored)
        if not with_gradient:
            return results, {}
        return results, _gradient(hidden_ND, leaves, scored)


def _gradient(hidden_ND: Tensor, leaves: Adapter, scored: Scored) -> dict[str, Tensor]:
    """By every tensor of the adapter: what the head has found, and the rest through the body."""
    names = [name for name in leaves.tensors if name not in scored.head]
    if not names:
        return dict(scored.head)
    found = torch.autograd.grad(
        hidden_ND,
        [leaves.tensors[name] for name in names],
        scored.slopes_ND,
        materialize_grads=True,
    )
    both = dict(zip(names, found, strict=True)) | dict(scored.head)
    return {name: both[name] for name in leaves.tensors}


def _outputs(batch: Batch, scored: Scored) -> dict[int, LossOutput]:
    sums = torch.stack([each.sum() for each in torch.split(scored.terms_NK, batch.lengths)])
    scores = torch.split(scored.logprobs_NK.cpu(), batch.lengths)
    return {
        row.index: _output(row, total, score)
        for row, total, score in zip(batch.rows, sums.tolist(), scores, strict=True)
    }


def _output(row: Row, loss: float, scores_TK: Tensor) -> LossOutput:
    """In the shape of the row's targets: the batch is as wide as its widest row."""
    if not math.isfinite(loss):
        raise EngineError(f"datum {row.index}: the loss is {loss}")
    scores = scores_TK.numpy()[:, : row.inputs[TARGETS].shape[1]]
    return LossOutput(loss, scores[:, 0].copy() if row.flat else scores.copy())
