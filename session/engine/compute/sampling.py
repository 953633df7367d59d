"""All that samples: a running batch for each base, one for each deterministic request, one memory.

They take turns, a pass each.
"""

from collections import deque
from itertools import count
from math import inf

from session.engine.compute.budget import Memory
from session.engine.compute.lora import Adapter
from session.engine.compute.memory import is_out_of_memory
from session.engine.compute.model import BaseModel
from session.engine.compute.running import Counts, Event, Running
from session.engine.compute.sampler import Ticket, open_ticket
from session.engine.port import EngineError, SampleRequest


class Sampling:
    """Not thread-safe. `counts` and `memory` are open to whoever wants to know."""

    def __init__(self, *, chunk_tokens: int, cache_bytes: int) -> None:
        self.counts = Counts()
        self.memory = Memory(cache_bytes)
        self._chunk_tokens = chunk_tokens
        self._shared: dict[BaseModel, Running] = {}
        self._busy: deque[Running] = deque()
        self._numbers = count()

    @property
    def is_idle(self) -> bool:
        return not self._busy

    def join(self, base: BaseModel, adapter: Adapter | None, request: SampleRequest) -> Ticket:
        """Raises EngineError for what cannot be sampled."""
        ticket = open_ticket(base, adapter, request)
        running = self._new(base, is_alone=True) if request.deterministic else self._of(base)
        ticket.number = next(self._numbers)
        running.join(ticket)
        if running not in self._busy:
            self._busy.append(running)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Its memory is free afterwards. One that is through is ignored."""
        for running in list(self._busy):
            running.leave(ticket)
            if not running.tickets:
                self._busy.remove(running)

    def step(self) -> list[Event]:
        """One pass of whose turn it is. What breaks a pass is the event of all that were in it."""
        if not self._busy:
            return []
        running = self._busy.popleft()
        tickets = running.tickets  # also those that are through when the pass breaks: untold yet
        try:
            events = running.step(min((each.first_waiting for each in self._busy), default=inf))
        except Exception as error:  # noqa: BLE001  (of this pass: told to whom it concerns)
            self._drop(running)
            why = _explained(error)
            return [(ticket, why) for ticket in tickets]
        if running.tickets:
            self._busy.append(running)
        return events

    def _drop(self, running: Running) -> None:
        """Who comes next gets a new one. Does so little that it cannot fail itself."""
        running.abandon()
        self._shared = {base: each for base, each in self._shared.items() if each is not running}

    def _of(self, base: BaseModel) -> Running:
        if base not in self._shared:
            self._shared[base] = self._new(base, is_alone=False)
        return self._shared[base]

    def _new(self, base: BaseModel, *, is_alone: bool) -> Running:
        return Running(
            base,
            self.memory,
            self.counts,
            chunk_tokens=self._chunk_tokens,
            is_alone=is_alone,
        )


def _explained(error: Exception) -> Exception:
    """Of how many requests and bytes, is no business of any one account's among them."""
    return EngineError("out of memory while sampling") if is_out_of_memory(error) else error
