"""A model in training as plain torch on PEFT computes it, one datum after another."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM

from session.engine.compute import weights
from session.engine.compute.engine import Compute
from session.engine.port import BaseRef, Datum, LoraConfig, Loss, LossOutput
from support.plain import config_of, plain_terms
from support.tiny import ADAM


@dataclass(frozen=True)
class Golden:
    """Of each datum its log-probabilities and the terms of its loss; of all together, the gradient
    by the adapter's tensors."""

    logprobs: Sequence[Tensor]
    terms: Sequence[Tensor]
    gradient: Mapping[str, Tensor]


def golden(
    ref: BaseRef,
    adapter: Path,
    data: Sequence[Datum],
    loss: Loss,
    *,
    dtype: torch.dtype = torch.float32,
    attention: str = "sdpa",
) -> Golden:
    base = AutoModelForCausalLM.from_pretrained(
        ref.path, dtype=dtype, attn_implementation=attention, experts_implementation="eager"
    )
    model = PeftModel.from_pretrained(base, adapter, is_trainable=True).to(dtype)
    logprobs, terms = [], []
    for datum in data:
        logits = model(input_ids=torch.from_numpy(datum.tokens)[None]).logits[0]
        targets = torch.from_numpy(np.asarray(datum.inputs["target_tokens"]))
        places = targets.reshape(len(targets), -1)
        found = logits.log_softmax(-1).gather(-1, places).view_as(targets)
        each = plain_terms(loss, found, datum.inputs)
        torch.autograd.backward(each.sum())
        logprobs.append(found.detach())
        terms.append(each.detach())
    gradient = {
        name.replace(".default.", "."): parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    return Golden(logprobs, terms, gradient)


def trained_adapter(ref: BaseRef, lora: LoraConfig, data: Sequence[Datum], target: Path) -> Path:
    """The adapter after one step, so that B is no longer zero; the place is a save's."""
    compute = Compute(micro_batch_tokens=512)
    compute.create_model("m", ref, lora)
    finish(compute.forward_backward("m", data, Loss.cross_entropy, {}))
    compute.optim_step("m", ADAM)
    weights.write(compute.model("m"), target, with_optimizer=False)
    return target / weights.ADAPTER


def restored(compute: Compute, ref: BaseRef, lora: LoraConfig, adapter: Path) -> Compute:
    """With that adapter as its model `m`."""
    compute.create_model("m", ref, lora)
    compute.load("m", adapter.parents[1], with_optimizer=False)
    return compute


def train(compute: Compute, data: Sequence[Datum], loss: Loss) -> list[LossOutput]:
    return finish(compute.forward_backward("m", data, loss, config_of(loss)))


def finish(work: Iterator[dict[int, LossOutput]]) -> list[LossOutput]:
    results = {index: each for part in work for index, each in part.items()}
    return [results[index] for index in sorted(results)]


def assert_same_gradient(
    found: Mapping[str, Tensor] | None, expected: Mapping[str, Tensor], *, within: float
) -> None:
    """Every tensor for itself, relative to its norm."""
    assert found is not None
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert tensor.norm() > 0, name
        error = (found[name].double() - tensor.double()).norm() / tensor.double().norm()
        assert error <= within, f"{name}: {error}"
