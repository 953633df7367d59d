"""A model in training: immutable, so that the reference held by a save or a sample is a snapshot.

Shapes: N tokens of the batch, K targets a token, D hidden size.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from session.engine.compute.attention import Sequences
from session.engine.compute.batch import TARGETS, Batch
from session.engine.compute.lora import Adapter, Tensors, map_tensors
from session.engine.compute.losses import FORMULAS
from session.engine.compute.model import BaseModel
from session.engine.compute.optim import Moments, adamw_step
from session.engine.port import AdamParams, EngineError, LoraConfig, Loss, LossOutput, StepResult

# Rows of [tokens, vocabulary] that exist at once; more are recomputed in the backward pass.
HEAD_ROWS = 512


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
            gradient = map_tensors(torch.add, self.gradient, gradient)
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


def run_batch(
    base: BaseModel, adapter: Adapter, batch: Batch, *, loss: Loss, config: Mapping[str, float]
) -> tuple[dict[int, LossOutput], Tensor, Adapter]:
    """Results by datum, the sum to differentiate, and the leaves to differentiate it by.

    `forward` builds the graph too and drops it: without one, torch may pick other kernels, and the
    two would no longer agree to the last bit.
    """
    leaves = replace(
        adapter, tensors=map_tensors(lambda t: t.detach().requires_grad_(), adapter.tensors)
    )
    with base.slot.using(leaves):
        plan = Sequences(batch.lengths)
        hidden_ND = base.hidden(batch.tokens_N, batch.positions_N, plan)
        logprobs_NK = _target_logprobs(base, hidden_ND, batch.inputs_NK[TARGETS])
    terms_NK = FORMULAS[loss].terms(logprobs_NK, batch.inputs_NK, config)
    sums = [each.sum() for each in torch.split(terms_NK, batch.lengths)]
    scores = torch.split(logprobs_NK.detach(), batch.lengths)
    results = {
        row.index: _output(row.index, row.flat, float(total.detach()), score)
        for row, total, score in zip(batch.rows, sums, scores, strict=True)
    }
    return results, torch.stack(sums).sum(), leaves


def backward(base: BaseModel, total: Tensor, leaves: Adapter) -> dict[str, Tensor]:
    # The recomputed part of the head runs in here, so it needs the adapter again.
    with base.slot.using(leaves):
        gradients = torch.autograd.grad(
            total, list(leaves.tensors.values()), materialize_grads=True
        )
    return dict(zip(leaves.tensors, gradients, strict=True))


def _target_logprobs(base: BaseModel, hidden_ND: Tensor, targets_NK: Tensor) -> Tensor:
    def chunk(hidden_ND: Tensor, targets_NK: Tensor) -> Tensor:
        return base.logits(hidden_ND).log_softmax(-1).gather(-1, targets_NK)

    if len(hidden_ND) <= HEAD_ROWS:
        return chunk(hidden_ND, targets_NK)
    pieces = zip(torch.split(hidden_ND, HEAD_ROWS), torch.split(targets_NK, HEAD_ROWS), strict=True)
    return torch.cat([checkpoint(chunk, *piece, use_reentrant=False) for piece in pieces])


def _output(index: int, flat: bool, loss: float, scores_TK: Tensor) -> LossOutput:
    if not math.isfinite(loss):
        raise EngineError(f"datum {index}: the loss is {loss}")
    scores = scores_TK.numpy()
    return LossOutput(loss, scores[:, 0].copy() if flat else scores.copy())
