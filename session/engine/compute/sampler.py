"""One request to sample: its checks, its samples, and the rule that ends them."""

import math
import re
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from session.engine.compute.batch import check_tokens
from session.engine.compute.drawing import Drawn, random_numbers
from session.engine.compute.keys import Group, Prompt, Slot
from session.engine.compute.lora import Adapter
from session.engine.compute.model import BaseModel
from session.engine.compute.numeric import is_finite, is_whole
from session.engine.port import EngineError, Floats, SampleChunk, SampleRequest

# Tokens decoded beyond a stop string's bytes: some decoders treat the first one specially.
MARGIN = 8
_BROKEN = "\N{REPLACEMENT CHARACTER}"
_SURROGATE = re.compile("[\ud800-\udfff]")
MAX_SAMPLES = 1024  # of one prompt


@dataclass(eq=False)
class Sample:
    ticket: "Ticket"
    index: int
    numbers: np.random.Generator
    tokens: list[int] = field(default_factory=list)
    slot: Slot = field(default_factory=Slot)
    group: Group | None = None  # while it runs
    reserved: int = 0

    @property
    def adapter(self) -> Adapter | None:
        return self.ticket.adapter

    @property
    def position(self) -> int:
        """Of its newest token, which the next pass computes."""
        return len(self.ticket.tokens) + len(self.tokens) - 1

    @property
    def input(self) -> npt.NDArray[np.int64]:
        return np.array(self.tokens[-1:], np.int64)


@dataclass(eq=False)
class Ticket:
    """A request on its way; `adapter` is the weights it was admitted with. `waiting` are samples
    for which there was no memory yet, `starting` those without a token; `number` says who came
    first."""

    request: SampleRequest
    adapter: Adapter | None
    tokens: npt.NDArray[np.int64]
    waiting: list[Sample] = field(default_factory=list)
    starting: list[Sample] = field(default_factory=list)
    unfinished: int = 0
    prompt: Prompt | None = None
    shares_prompt: bool = False
    cached_tokens: int = 0
    is_told: bool = False
    number: int = 0

    @property
    def needs_prompt(self) -> bool:
        return self.request.max_tokens > 0 or self.request.prompt_logprobs

    @property
    def own_positions(self) -> int:
        """Of the prompt, those that each sample has in its own slot."""
        return 0 if self.shares_prompt else len(self.tokens)

    def told(self, chunk: SampleChunk) -> SampleChunk:
        """The first chunk says how much of the prompt came from memory."""
        if self.is_told:
            return chunk
        self.is_told = True
        return replace(chunk, cached_tokens=self.cached_tokens)


def open_ticket(base: BaseModel, adapter: Adapter | None, request: SampleRequest) -> Ticket:
    """Raises EngineError for what cannot be sampled."""
    ticket = Ticket(request, adapter, check_request(base, request), unfinished=request.n)
    ticket.waiting = [
        Sample(ticket, index, random_numbers(request, index)) for index in range(request.n)
    ]
    return ticket


def accept(base: BaseModel, sample: Sample, drawn: Drawn) -> SampleChunk:
    """Add a token; the chunk says whether it was the last."""
    if drawn.token is None:
        raise EngineError("the model's logits are not finite: its weights have diverged")
    sample.tokens.append(drawn.token)
    reason = _stop_reason(base, sample, sample.ticket.request)
    return SampleChunk(sample.index, (drawn.token,), (drawn.logprob,), reason)


def prompt_scores(prompt: Prompt) -> Floats:
    """[T], NaN at 0."""
    assert prompt.scores is not None
    scores: Floats = np.concatenate(
        [np.array([math.nan], np.float32), *(each.cpu().numpy() for each in prompt.scores)]
    )
    return scores


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


def _is_row(value: object) -> bool:
    return isinstance(value, list | tuple)


def _is_text(stop: object) -> bool:
    """Also none that UTF-8 cannot hold: half of a surrogate pair."""
    return isinstance(stop, str) and stop != "" and not _SURROGATE.search(stop)


def check_request(base: BaseModel, request: SampleRequest) -> npt.NDArray[np.int64]:
    prompt = np.asarray(request.prompt)
    if prompt.ndim != 1 or len(prompt) == 0:
        raise EngineError("the prompt is empty")
    prompt = check_tokens(base, prompt, "prompt")
    stop_ids, stops = request.stop_ids, request.stop_strings
    allowed = {
        "max_tokens": is_whole(request.max_tokens) and request.max_tokens >= 0,
        "n": is_whole(request.n) and 1 <= request.n <= MAX_SAMPLES,
        "temperature": is_finite(request.temperature) and request.temperature >= 0,
        "top_k": is_whole(request.top_k) and (request.top_k == -1 or request.top_k >= 1),
        "top_p": is_finite(request.top_p) and 0 < request.top_p <= 1,
        "seed": request.seed is None or is_whole(request.seed),
        "stop_ids": stop_ids is None or (_is_row(stop_ids) and all(map(is_whole, stop_ids))),
        "stop_strings": _is_row(stops) and all(map(_is_text, stops)),
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
