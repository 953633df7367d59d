"""Training as one would write it with torch and PEFT alone, in as few lines as do it well."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from session.engine.port import AdamParams, Datum
from session.engine.port import LoraConfig as OurLora


class PlainLoop:
    """Batches are padded to their longest; the head and the loss see real positions alone."""

    def __init__(self, path: Path, lora: OurLora, adam: AdamParams, *, dtype: str, device: str):
        base: Any = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
        chosen = LoraConfig(r=lora.rank, lora_alpha=int(lora.alpha), target_modules=[*lora.targets])
        self.model: Any = get_peft_model(base.to(device), chosen)
        self.device = device
        self.optimizer = torch.optim.AdamW(
            [each for each in self.model.parameters() if each.requires_grad],
            lr=adam.learning_rate,
            betas=(adam.beta1, adam.beta2),
            eps=adam.eps,
            weight_decay=adam.weight_decay,
        )

    def step(self, groups: Sequence[Sequence[Datum]], *, padded_head: bool = False) -> float:
        """One optimizer step over the groups, each a forward and backward pass. Its loss."""
        total = 0.0
        for group in groups:
            loss = self._loss(group, padded_head=padded_head)
            torch.autograd.backward(loss)
            total += float(loss.detach())
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total

    def _loss(self, group: Sequence[Datum], *, padded_head: bool) -> Tensor:
        tokens, targets, weights, real = (
            _padded([each(datum) for datum in group], self.device) for each in _COLUMNS
        )
        model = self.model.base_model.model
        mask = real if len(group) > 1 else None
        hidden = model.model(tokens, attention_mask=mask, use_cache=False).last_hidden_state
        if not padded_head:
            hidden, targets, weights = (each[real] for each in (hidden, targets, weights))
        logits = model.lm_head(hidden).flatten(0, -2)
        losses = F.cross_entropy(logits, targets.flatten(), reduction="none")
        return (losses.float() * weights.flatten()).sum()


_COLUMNS = (
    lambda datum: datum.tokens,
    lambda datum: datum.inputs["target_tokens"],
    lambda datum: datum.inputs["weights"],
    lambda datum: np.ones(len(datum.tokens), bool),
)


def sorted_groups(data: Sequence[Datum], budget: int) -> list[list[Datum]]:
    """By length, so that little is padded: as many in a group as `budget` padded tokens hold."""
    groups: list[list[Datum]] = [[]]
    for datum in sorted(data, key=lambda datum: -len(datum.tokens)):
        if groups[-1] and (len(groups[-1]) + 1) * len(groups[-1][0].tokens) > budget:
            groups.append([])
        groups[-1].append(datum)
    return groups


def _padded(arrays: Sequence[Any], device: str) -> Tensor:
    width = max(len(each) for each in arrays)
    rows = [np.pad(each, (0, width - len(each))) for each in arrays]
    return torch.from_numpy(np.stack(rows)).to(device)
