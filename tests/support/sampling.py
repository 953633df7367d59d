"""Requests that sample together on an engine's `Compute`, pass by pass."""

from dataclasses import dataclass, field

from session.engine.compute.engine import Compute
from session.engine.compute.sampler import Ticket
from session.engine.port import SampleChunk, SampleRequest


@dataclass
class Got:
    """Of one request."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[float]] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    cached: int = 0
    error: Exception | None = None

    def take(self, event: SampleChunk | Exception) -> None:
        if isinstance(event, Exception):
            self.error = event
            return
        self.tokens.setdefault(event.index, []).extend(event.tokens)
        self.logprobs.setdefault(event.index, []).extend(event.logprobs)
        self.reasons += [event.stop_reason] if event.stop_reason else []
        self.cached += event.cached_tokens


def join(compute: Compute, request: SampleRequest) -> Ticket:
    return compute.join(request, compute.weights_of(request))


def run(
    compute: Compute, *requests: SampleRequest, late: tuple[SampleRequest, ...] = ()
) -> list[Got]:
    """The late ones join one by one, a pass apart."""
    found = {join(compute, request): Got() for request in requests}
    waiting = list(late)
    while waiting or not compute.sampling.is_idle:
        for ticket, event in compute.sampling.step():
            found[ticket].take(event)
        if waiting:
            found[join(compute, waiting.pop(0))] = Got()
    return list(found.values())
