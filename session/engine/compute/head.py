"""The head of a model: log-probabilities of the targets, and what a loss of them passes back,
without the logits of a whole batch.

A loss is a sum over tokens, so the slope g_nk of the loss by each log-probability l_nk is known as
soon as that is. With p the softmax of the logits z, the slope by z_nv is
sum_k g_nk [v = target_nk] - p_nv sum_k g_nk. So a chunk of tokens goes through the head once, its
logits are turned into their slopes in place, and are gone before the next chunk's are made.

Shapes: N tokens of the batch, C of a chunk, L of those with a slope, K targets a token, D hidden
size, V vocabulary.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from session.engine.compute.batch import TARGETS
from session.engine.compute.lora import LoraLinear

# How many logits exist at once: 128 MiB in float32, and enough rows for a fast product.
LOGITS = 2**25

Inputs = Mapping[str, Tensor]
Terms = Callable[[Tensor, Inputs], Tensor]


@dataclass(frozen=True, slots=True)
class Scored:
    """`slopes_ND` is the gradient by the hidden states, `head` that by the head's own adapter."""

    logprobs_NK: Tensor
    terms_NK: Tensor
    slopes_ND: Tensor
    head: Mapping[str, Tensor] = field(default_factory=dict)


@torch.no_grad()
def score(
    head: LoraLinear,
    hidden_ND: Tensor,
    inputs_NK: Inputs,
    terms: Terms,
    *,
    with_slopes: bool,
    logits: int = LOGITS,
) -> Scored:
    """`terms` gives the loss of each token from its log-probabilities and inputs. At most `logits`
    of them exist at once, or those of one token."""
    rows = max(1, logits // head.linear.out_features)
    slopes_ND = torch.zeros_like(hidden_ND) if with_slopes else hidden_ND[:0]
    by_head: dict[str, Tensor] = {}
    found: list[tuple[Tensor, Tensor]] = []
    for start in range(0, len(hidden_ND), rows):
        place = slice(start, start + rows)
        inputs_CK = {name: each[place] for name, each in inputs_NK.items()}
        logprobs_CK, shares = _logprobs(head(hidden_ND[place]), inputs_CK[TARGETS])
        terms_CK, slopes_CK = _terms(terms, logprobs_CK, inputs_CK, with_slopes=with_slopes)
        found.append((logprobs_CK, terms_CK))
        if with_slopes:
            live_L = (slopes_CK != 0).any(-1).nonzero()[:, 0]  # a masked token passes nothing back
            slopes_LV = shares.slopes(live_L, inputs_CK[TARGETS][live_L], slopes_CK[live_L])
            live_L = start + live_L
            slopes_ND[live_L] = _through(head, hidden_ND[live_L], slopes_LV, by_head)
    logprobs, losses = (torch.cat(each) for each in zip(*found, strict=True))
    return Scored(logprobs, losses, slopes_ND, by_head)


@dataclass(frozen=True, slots=True)
class _Shares:
    """The softmax of logits, before it is divided by its sum."""

    exp_CV: Tensor
    sum_C1: Tensor

    def slopes(self, live_L: Tensor, targets_LK: Tensor, slopes_LK: Tensor) -> Tensor:
        """By the logits, for some of the tokens; where these are all, in the place of `exp_CV`."""
        is_whole = len(live_L) == len(self.exp_CV)
        slopes_LV = self.exp_CV if is_whole else self.exp_CV[live_L]
        slopes_LV.mul_(-slopes_LK.sum(-1, keepdim=True) / self.sum_C1[live_L])
        for k in range(targets_LK.shape[1]):  # one a row: places that come twice have no order
            slopes_LV.scatter_add_(-1, targets_LK[:, k : k + 1], slopes_LK[:, k : k + 1])
        return slopes_LV


def _logprobs(logits_CV: Tensor, targets_CK: Tensor) -> tuple[Tensor, _Shares]:
    """In float32 at least, whatever the model computes in, and in the place of the logits."""
    logits_CV = logits_CV.to(torch.promote_types(logits_CV.dtype, torch.float32))
    logits_CV -= logits_CV.amax(-1, keepdim=True)
    targeted_CK = logits_CV.gather(-1, targets_CK)
    exp_CV = logits_CV.exp_()
    sum_C1 = exp_CV.sum(-1, keepdim=True)
    return targeted_CK - sum_C1.log(), _Shares(exp_CV, sum_C1)


def _terms(
    terms: Terms, logprobs_CK: Tensor, inputs_CK: Inputs, *, with_slopes: bool
) -> tuple[Tensor, Tensor]:
    """The loss of each token, and its slope by each log-probability."""
    if not with_slopes:
        return terms(logprobs_CK, inputs_CK), logprobs_CK
    with torch.enable_grad():
        leaf_CK = logprobs_CK.detach().requires_grad_()
        terms_CK = terms(leaf_CK, inputs_CK)
        (slopes_CK,) = torch.autograd.grad(terms_CK.sum(), leaf_CK)
    return terms_CK.detach(), slopes_CK


def _through(
    head: LoraLinear, hidden_LD: Tensor, slopes_LV: Tensor, by_head: dict[str, Tensor]
) -> Tensor:
    """The gradient by the hidden states; that by the head's adapter is added to `by_head`."""
    weight_VD = head.linear.weight
    slopes_LD = slopes_LV.to(weight_VD.dtype) @ weight_VD
    pair = head.pair
    if pair is None:
        return slopes_LD
    by_down_LR, by_a, by_b = pair.pull_back(hidden_LD, pair.down(hidden_LD), slopes_LV)
    for name, gradient in ((head.a_name, by_a), (head.b_name, by_b)):
        by_head[name] = by_head[name] + gradient if name in by_head else gradient
    return slopes_LD.to(pair.a_RI.dtype).addmm_(by_down_LR, pair.a_RI).to(hidden_LD.dtype)
