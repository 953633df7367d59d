"""Continuous batching: what samples from one base runs together, joins and leaves between passes.

Shapes: S running samples, B rows for the head, D hidden size, V vocabulary.
"""

import math
from collections import Counter, deque
from dataclasses import dataclass

import numpy as np
import structlog
import torch
from torch import Tensor

from session.engine.compute.budget import Memory, Share
from session.engine.compute.drawing import draw
from session.engine.compute.keys import Group, Prompt, Slot, capacity
from session.engine.compute.model import BaseModel
from session.engine.compute.passes import by_adapter, compute, logits
from session.engine.compute.prompts import Prompts
from session.engine.compute.sampler import Sample, Ticket, accept, prompt_scores
from session.engine.port import EngineError, SampleChunk

log = structlog.get_logger()

Event = tuple[Ticket, SampleChunk | Exception]


@dataclass
class Counts:
    """What sampling did so far; all but the passes in tokens. `cached` were not computed again."""

    passes: int = 0
    prefilled: int = 0
    decoded: int = 0
    cached: int = 0


class Running:
    """Not thread-safe. `is_alone` is for one deterministic request: its samples start together,
    nothing is taken from what others computed, and nothing is left to them."""

    def __init__(
        self, base: BaseModel, memory: Memory, counts: Counts, *, chunk_tokens: int, is_alone: bool
    ) -> None:
        self._base = base
        self._share = Share(memory)
        self._counts = counts
        self._chunk_tokens = chunk_tokens
        self._is_alone = is_alone
        self._prompts = Prompts(base, self._share, is_alone=is_alone)
        self._tickets: list[Ticket] = []
        self._queue: deque[Ticket] = deque()  # those of which samples wait for memory
        self._running: list[Sample] = []
        self._groups: list[Group] = []

    @property
    def tickets(self) -> list[Ticket]:
        return list(self._tickets)

    def join(self, ticket: Ticket) -> None:
        """Raises EngineError where all of the memory would not be enough for it."""
        request, length = ticket.request, len(ticket.tokens)
        self._prompts.expect(ticket)
        at_once = request.n if self._is_alone else 1
        least = self._prompts.size(length) + at_once * self._prompts.sample_size(ticket)
        if ticket.needs_prompt and least > self._share.memory.budget:
            raise EngineError(
                f"a prompt of {length} tokens with max_tokens {request.max_tokens} needs {least} "
                f"bytes of keys and values; all of sampling has {self._share.memory.budget}"
            )
        self._tickets.append(ticket)
        self._queue.append(ticket)

    def leave(self, ticket: Ticket) -> None:
        """Forget it, whatever it was doing; one that is through is ignored."""
        if ticket not in self._tickets:
            return
        self._tickets.remove(ticket)
        if ticket in self._queue:
            self._queue.remove(ticket)
        for sample in ticket.starting:
            self._share.free(sample.reserved)
        for sample in [each for each in self._running if each.ticket is ticket]:
            self._end(sample)
        self._prompts.release(ticket)

    def abandon(self) -> None:
        """After a pass that broke anywhere: what it left of slots, groups and prompts fits nothing
        any more, and goes with this object."""
        self._share.free_all()

    @property
    def first_waiting(self) -> float:
        """The number of who has waited longest for memory; infinite where nobody does."""
        return self._queue[0].number if self._queue else math.inf

    def step(self, before: float = math.inf) -> list[Event]:
        """One pass, and what it brought. Where this raises, nothing but `abandon` may follow.

        No ticket starts that came after `before`, which waits for memory elsewhere; one that holds
        its prompt goes on, or the two would wait for each other."""
        self._admit(before)
        decoding = by_adapter(self._running)
        for sample in decoding:
            self._make_room(sample)
        pieces = self._prompts.next_pieces(self._chunk_tokens)
        hidden_SD = None
        if decoding or pieces:
            hidden_SD = compute(self._base, decoding, pieces)
            self._counts.passes += 1
            self._counts.prefilled += sum(piece.count for piece in pieces)
            self._counts.decoded += len(decoding)
        events = [event for ticket in self.tickets for event in self._score(ticket)]
        ready = [each for each in self._tickets if each.prompt and each.prompt.is_complete]
        starting = by_adapter([sample for each in ready for sample in each.starting])
        return events + self._draw(hidden_SD, decoding, starting)

    def _admit(self, before: float) -> None:
        """In the order of their coming, as long as there is memory."""
        while self._queue:
            ticket = self._queue[0]
            is_early = ticket.number < before or ticket.prompt is not None
            if not (is_early and self._admit_samples(ticket)):
                return
            self._queue.popleft()

    def _admit_samples(self, ticket: Ticket) -> bool:
        at_once = len(ticket.waiting) if self._is_alone else 1
        while ticket.waiting:
            if ticket.needs_prompt and ticket.prompt is None:
                if not self._prompts.take(ticket, samples=at_once):
                    return False
                self._counts.cached += ticket.cached_tokens
            elif not self._share.reserve(at_once * self._prompts.sample_size(ticket)):
                return False
            admitted, ticket.waiting = ticket.waiting[:at_once], ticket.waiting[at_once:]
            for sample in admitted:
                sample.reserved = self._prompts.sample_size(ticket)
            ticket.starting += admitted
        return True

    def _score(self, ticket: Ticket) -> list[Event]:
        """The scores of a prompt that is complete, and the end of who wanted no tokens."""
        chunks = []
        if ticket.needs_prompt and (ticket.prompt is None or not ticket.prompt.is_complete):
            return []
        if ticket.request.prompt_logprobs and not ticket.is_told and ticket.prompt is not None:
            chunks.append(SampleChunk(-1, prompt_logprobs=prompt_scores(ticket.prompt)))
        if ticket.request.max_tokens == 0:
            chunks += [SampleChunk(n, stop_reason="length") for n in range(ticket.request.n)]
            ticket.unfinished = 0
            self.leave(ticket)
        return [(ticket, ticket.told(chunk)) for chunk in chunks]

    def _draw(
        self, hidden_SD: Tensor | None, decoding: list[Sample], starting: list[Sample]
    ) -> list[Event]:
        """The next token of all that ran and the first of all whose prompt is complete."""
        samples = [*decoding, *starting]
        if not samples:
            return []
        logits_BV = self._logits(hidden_SD, decoding, starting)
        requests = [each.ticket.request for each in samples]
        drawn = draw(logits_BV, requests, [each.numbers for each in samples])
        events: list[Event] = []
        failed: set[Ticket] = set()
        told: list[tuple[Sample, bool]] = []
        for sample, each in zip(samples, drawn, strict=True):
            ticket = sample.ticket
            if ticket in failed:
                continue
            try:
                chunk = accept(self._base, sample, each)
            except Exception as error:  # of one request: no other pays for it
                failed.add(ticket)
                self.leave(ticket)
                events.append((ticket, error))
                if not isinstance(error, EngineError):
                    log.warning("sample.failed", exc_info=error)
                continue
            events.append((ticket, ticket.told(chunk)))
            told.append((sample, chunk.stop_reason is not None))
        left = [(sample, is_over) for sample, is_over in told if sample.ticket not in failed]
        self._expect([sample for sample, is_over in left if sample.group is None and not is_over])
        for sample, is_over in left:
            self._go_on(sample, is_over=is_over)
        return events

    def _logits(
        self, hidden_SD: Tensor | None, decoding: list[Sample], starting: list[Sample]
    ) -> Tensor:
        """A row each. Samples that start from one prompt have the same, computed once."""
        fresh: dict[Prompt, int] = {}
        adapters, states = [each.adapter for each in decoding], []
        if hidden_SD is not None:
            states.append(hidden_SD)
        rows = list(range(len(decoding)))
        for sample in starting:
            prompt = sample.ticket.prompt
            assert prompt is not None
            assert prompt.last_D is not None
            if prompt not in fresh:
                fresh[prompt] = len(adapters)
                adapters.append(sample.adapter)
                states.append(prompt.last_D[None])
            rows.append(fresh[prompt])
        logits_BV = logits(self._base, adapters, torch.cat(states))
        return logits_BV if len(rows) == len(logits_BV) else logits_BV[rows]

    def _go_on(self, sample: Sample, *, is_over: bool) -> None:
        ticket = sample.ticket
        if sample.group is None:
            ticket.starting.remove(sample)
            if is_over:
                self._share.free(sample.reserved)
            else:
                self._place(sample)
        elif is_over:
            self._remember(sample)
            self._end(sample)
        ticket.unfinished -= is_over
        if ticket.unfinished == 0:
            self.leave(ticket)
        elif not (ticket.shares_prompt or ticket.waiting or ticket.starting):
            self._prompts.release(ticket)

    def _expect(self, placed: list[Sample]) -> None:
        for group, count in Counter(self._first_group(each.ticket) for each in placed).items():
            group.expect(count)

    def _first_group(self, ticket: Ticket) -> Group:
        return self._group(
            ticket.own_positions + 1, ticket.prompt if ticket.shares_prompt else None
        )

    def _place(self, sample: Sample) -> None:
        ticket, prompt = sample.ticket, sample.ticket.prompt
        assert prompt is not None
        filled = ticket.own_positions
        sample.slot, sample.group = Slot(filled), self._first_group(ticket)
        sample.group.add(sample.slot)
        if filled:
            for layer, key_GTE, value_GTE in prompt.layers():
                sample.group.fill(sample.slot, layer, key_GTE, value_GTE)
        self._running.append(sample)

    def _make_room(self, sample: Sample) -> None:
        """For one more position: in a larger group where the slot is full."""
        group, slot = sample.group, sample.slot
        assert group is not None
        if slot.filled < group.capacity:
            return
        sample.group, sample.slot = self._group(slot.filled + 1, group.prompt), Slot(slot.filled)
        sample.group.add(sample.slot)
        for layer, key_GLE, value_GLE in group.read(slot):
            sample.group.fill(sample.slot, layer, key_GLE, value_GLE)
        self._vacate(group, slot)

    def _group(self, length: int, prompt: Prompt | None) -> Group:
        size = capacity(length)
        for group in self._groups:
            if group.capacity == size and group.prompt is prompt:
                return group
        self._groups.append(Group(size, prompt))
        return self._groups[-1]

    def _vacate(self, group: Group, slot: Slot) -> None:
        group.remove(slot)
        if not group.slots:
            self._groups.remove(group)

    def _end(self, sample: Sample) -> None:
        assert sample.group is not None
        self._running.remove(sample)
        self._share.free(sample.reserved)
        self._vacate(sample.group, sample.slot)

    def _remember(self, sample: Sample) -> None:
        """What it said continues its prompt: the next turn of a conversation begins with both."""
        ticket, group = sample.ticket, sample.group
        if self._is_alone or ticket.shares_prompt or ticket.request.n > 1 or group is None:
            return
        tokens = np.concatenate([ticket.tokens, sample.tokens[:-1]])
        whole = Prompt(tokens, ticket.adapter, ticket.request.owner)
        for layer, key_GLE, value_GLE in group.read(sample.slot):
            whole.take(layer, key_GLE, value_GLE)
        whole.done = len(tokens)
        self._share.memory.keep(self._base, whole, self._prompts.size(len(tokens)))
