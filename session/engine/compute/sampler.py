"""Sampling and scoring: one prefill a request, its samples as one batch on a shared KV cache.

Shapes: N live samples, T prompt positions, D hidden size, V vocabulary.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from session.engine.compute.attention import Call, attend, over_heads
from session.engine.compute.batch import check_tokens
from session.engine.compute.lora import Adapter
from session.engine.compute.model import BaseModel
from session.engine.port import EngineError, SampleChunk, SampleRequest

# Tokens decoded beyond a stop string's bytes: some decoders treat the first one specially.
MARGIN = 8
_BROKEN = "\N{REPLACEMENT CHARACTER}"
MAX_SAMPLES = 1024  # of one prompt: its cache is held once for each

MIN_TEMPERATURE = 1e-6
"""A lower one counts as this: the likeliest token but for ties, and finite in float32."""


@dataclass
class Sample:
    index: int
    generator: torch.Generator
    tokens: list[int] = field(default_factory=list)


class Cache:
    """Keys and values, [n, H, T, E] a layer, of `n` rows of one length: a prompt, then samples."""

    def __init__(self) -> None:
        self._rows = 1
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def length(self) -> int:
        return next((key.shape[2] for key, _ in self._layers.values()), 0)

    def attend(self, call: Call) -> Tensor:
        query, key, value = (self._by_row(each) for each in over_heads(call))
        if (before := self._layers.get(call.layer)) is not None:
            key, value = torch.cat((before[0], key), 2), torch.cat((before[1], value), 2)
        self._layers[call.layer] = (key, value)
        return attend(query, key, value, call).transpose(1, 2).flatten(0, 1)

    def repeat(self, count: int) -> None:
        self._each(lambda tensor: tensor.repeat_interleave(count, dim=0))
        self._rows = count

    def keep(self, lines: Tensor) -> None:
        self._each(lambda tensor: tensor[lines])
        self._rows = len(lines)

    def _by_row(self, tensor_HNE: Tensor) -> Tensor:
        return tensor_HNE.reshape(len(tensor_HNE), self._rows, -1, tensor_HNE.shape[-1]).transpose(
            0, 1
        )

    def _each(self, change: Callable[[Tensor], Tensor]) -> None:
        self._layers = {n: (change(k), change(v)) for n, (k, v) in self._layers.items()}


def sample(
    base: BaseModel, adapter: Adapter | None, request: SampleRequest, *, chunk_tokens: int
) -> Iterator[list[SampleChunk]]:
    """Each item is one turn's work, so that other work can run in between; it may be empty."""
    prompt = check_request(base, request)
    samples = [Sample(index, _generator(request, index)) for index in range(request.n)]
    if request.max_tokens > 0 or request.prompt_logprobs:
        cache = Cache()
        scores: list[Tensor] = []
        for start in range(0, len(prompt), chunk_tokens):
            part = prompt[start : start + chunk_tokens]
            following = prompt[start + 1 : start + 1 + chunk_tokens]
            logits_NV, found = _prefill(
                base, adapter, cache, part, following if request.prompt_logprobs else None
            )
            scores.append(found)
            yield []
    if request.prompt_logprobs:
        yield [SampleChunk(-1, prompt_logprobs=_scores(scores))]
    if request.max_tokens == 0:
        yield [SampleChunk(each.index, stop_reason="length") for each in samples]
        return
    if request.n > 1:
        cache.repeat(request.n)
        logits_NV = logits_NV.expand(request.n, -1)
    while True:
        chunks = _draw(base, logits_NV, samples, request)
        yield chunks
        live = [line for line, chunk in enumerate(chunks) if chunk.stop_reason is None]
        if not live:
            return
        if len(live) < len(samples):
            cache.keep(torch.tensor(live))
            samples = [samples[line] for line in live]
        logits_NV = _advance(base, adapter, cache, samples)


@torch.no_grad()
def _prefill(
    base: BaseModel,
    adapter: Adapter | None,
    cache: "Cache",
    part: npt.NDArray[np.int64],
    following: npt.NDArray[np.int64] | None,
) -> tuple[Tensor, Tensor]:
    """Logits after the last position, [1, V], and log-probabilities of the following tokens."""
    with base.slot.using(adapter):
        positions = torch.arange(len(part)) + cache.length
        hidden_TD = base.hidden(torch.from_numpy(part), positions, cache)
        last_NV = base.logits(hidden_TD[-1:])
        if following is None:
            return last_NV, torch.empty(0)
        logprobs_TV = base.logits(hidden_TD[: len(following)]).log_softmax(-1)
    scores = logprobs_TV.gather(-1, torch.from_numpy(following)[:, None])
    return last_NV, scores[:, 0]


@torch.no_grad()
def _advance(
    base: BaseModel, adapter: Adapter | None, cache: "Cache", samples: list[Sample]
) -> Tensor:
    last_N = torch.tensor([each.tokens[-1] for each in samples])
    positions_N = torch.full_like(last_N, cache.length)
    with base.slot.using(adapter):
        return base.logits(base.hidden(last_N, positions_N, cache))


@torch.no_grad()
def _draw(
    base: BaseModel, logits_NV: Tensor, samples: list[Sample], request: SampleRequest
) -> list[SampleChunk]:
    if not torch.isfinite(logits_NV).all():
        raise EngineError("the model's logits are not finite: its weights have diverged")
    temperature = max(request.temperature, MIN_TEMPERATURE) if request.temperature else 1.0
    peak_N1 = logits_NV.max(-1, keepdim=True).values
    logprobs_NV = ((logits_NV - peak_N1) / temperature).log_softmax(-1)
    if request.temperature == 0:
        drawn = logits_NV.argmax(-1).tolist()
    else:
        probabilities_NV = filter_logprobs(logprobs_NV, request).softmax(-1)
        drawn = [
            int(torch.multinomial(row, 1, generator=each.generator))
            for row, each in zip(probabilities_NV, samples, strict=True)
        ]
    for each, token in zip(samples, drawn, strict=True):
        each.tokens.append(token)
    return [
        SampleChunk(each.index, (token,), (float(row[token]),), _stop_reason(base, each, request))
        for each, token, row in zip(samples, drawn, logprobs_NV, strict=True)
    ]


def filter_logprobs(logprobs_NV: Tensor, request: SampleRequest) -> Tensor:
    """Top-k first; of what is left, the smallest set of tokens that reaches top-p."""
    if 0 < request.top_k < logprobs_NV.shape[-1]:
        kth_N1 = logprobs_NV.topk(request.top_k, -1).values[:, -1:]
        logprobs_NV = logprobs_NV.masked_fill(logprobs_NV < kth_N1, -math.inf)
    if request.top_p < 1.0:
        sorted_NV, order_NV = logprobs_NV.softmax(-1).sort(dim=-1, descending=True, stable=True)
        surplus_NV = sorted_NV.cumsum(-1) - sorted_NV >= request.top_p
        surplus_NV[:, 0] = False  # float32 knows no 1e-46: the likeliest stays, whatever top-p is
        outside_NV = torch.zeros_like(surplus_NV).scatter(-1, order_NV, surplus_NV)
        logprobs_NV = logprobs_NV.masked_fill(outside_NV, -math.inf)
    return logprobs_NV


def _stop_reason(base: BaseModel, sample: Sample, request: SampleRequest) -> str | None:
    ends = base.end_ids if request.stop_ids is None else request.stop_ids
    if sample.tokens[-1] in ends or _has_stop_string(base, sample.tokens, request.stop_strings):
        return "stop"
    return "length" if len(sample.tokens) >= request.max_tokens else None


def _has_stop_string(base: BaseModel, tokens: list[int], stops: tuple[str, ...]) -> bool:
    """Whether the end of the text holds one. Every token brings a byte at least.

    What begins or ends as U+FFFD is a character of which a part is missing, and no text yet."""
    if not stops:
        return False
    reach = max(len(stop.encode()) for stop in stops) + MARGIN
    text = base.tokenizer.decode(tokens[-reach:], skip_special_tokens=False)
    text = text.rstrip(_BROKEN)
    if len(tokens) > reach:
        text = text.lstrip(_BROKEN)
    return any(stop in text for stop in stops)


def _scores(parts: list[Tensor]) -> npt.NDArray[np.float32]:
    scores: npt.NDArray[np.float32] = torch.cat([torch.tensor([math.nan]), *parts]).numpy()
    return scores


def _generator(request: SampleRequest, index: int) -> torch.Generator:
    """Its own for every sample: what one draws depends on no other."""
    generator = torch.Generator()
    if request.seed is None:
        generator.seed()
    else:
        entropy = np.random.SeedSequence((request.seed % 2**64, index))
        generator.manual_seed(int(entropy.generate_state(1, np.uint64)[0]))
    return generator


def check_request(base: BaseModel, request: SampleRequest) -> npt.NDArray[np.int64]:
    prompt = np.asarray(request.prompt)
    if prompt.ndim != 1 or len(prompt) == 0:
        raise EngineError("the prompt is empty")
    prompt = check_tokens(base, prompt, "prompt")
    allowed = {
        "max_tokens": request.max_tokens >= 0,
        "n": 1 <= request.n <= MAX_SAMPLES,
        "temperature": math.isfinite(request.temperature) and request.temperature >= 0,
        "top_k": request.top_k == -1 or request.top_k >= 1,
        "top_p": 0 < request.top_p <= 1,
        "stop_strings": "" not in request.stop_strings,
    }
    for name, is_allowed in allowed.items():
        if not is_allowed:
            raise EngineError(f"{name} is {getattr(request, name)!r}, which sampling cannot use")
    if len(prompt) + request.max_tokens > base.context:
        raise EngineError(
            f"a prompt of {len(prompt)} tokens with max_tokens {request.max_tokens} "
            f"is over the context of {base.context}"
        )
    if request.stop_strings:
        _ = base.tokenizer  # fails now where the base has none
    return prompt
