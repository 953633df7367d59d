"""The prompts that a base's samples use: each distinct one is computed once, piece by piece."""

from collections import deque

import numpy as np

from session.engine.compute.budget import Share, token_bytes
from session.engine.compute.keys import Prompt, capacity
from session.engine.compute.lora import Adapter
from session.engine.compute.model import BaseModel
from session.engine.compute.passes import Piece
from session.engine.compute.sampler import Ticket

# Positions that need not be held twice, from which on samples read their prompt together. Fewer
# are copied to each: what is read together costs calls of its own.
SHARED_FROM = 256


class Prompts:
    """`is_alone`: nothing is taken from what others computed, and nothing is left to them."""

    def __init__(self, base: BaseModel, share: Share, *, is_alone: bool) -> None:
        self._base = base
        self._share = share
        self._is_alone = is_alone
        self._token_bytes = token_bytes(base)
        self._in_use: list[Prompt] = []
        self._unfinished: deque[tuple[Adapter | None, Prompt]] = deque()

    def __bool__(self) -> bool:
        return bool(self._in_use)

    def size(self, tokens: int) -> int:
        return tokens * self._token_bytes

    def expect(self, ticket: Ticket) -> None:
        """Decide whether its samples read their prompt together."""
        ticket.shares_prompt = len(ticket.tokens) * (ticket.request.n - 1) >= SHARED_FROM

    def take(self, ticket: Ticket, *, samples: int) -> bool:
        """Whether there is memory for the prompt and so many of its samples; then it is taken."""
        return self._take_used(ticket, samples) or self._take_idle_or_new(ticket, samples)

    def release(self, ticket: Ticket) -> None:
        """The last to leave a complete prompt leaves it to whoever comes."""
        prompt, ticket.prompt = ticket.prompt, None
        if prompt is None:
            return
        prompt.users -= 1
        if prompt.users:
            return
        self._in_use.remove(prompt)
        size = self.size(len(prompt.tokens))
        self._share.free(size)
        if not prompt.is_complete:
            self._unfinished = deque(each for each in self._unfinished if each[1] is not prompt)
        elif not self._is_alone:
            self._share.memory.keep(self._base, prompt, size)

    def next_pieces(self, budget: int) -> list[Piece]:
        """So many tokens at most. What is not through goes to the end: a long prompt holds up no
        short one."""
        pieces = []
        for _ in range(len(self._unfinished)):
            if budget == 0:
                break
            adapter, prompt = self._unfinished.popleft()
            count = min(budget, len(prompt.tokens) - prompt.done)
            budget -= count
            pieces.append(Piece(adapter, prompt, count))
            if prompt.done + count < len(prompt.tokens):
                self._unfinished.append((adapter, prompt))
        return pieces

    def _take_used(self, ticket: Ticket, samples: int) -> bool:
        request = ticket.request
        if self._is_alone or request.prompt_logprobs:
            return False
        for prompt in self._in_use:
            if prompt.belongs_to(ticket.adapter, request.owner) and np.array_equal(
                prompt.tokens, ticket.tokens
            ):
                shares = ticket.shares_prompt or len(prompt.tokens) >= SHARED_FROM
                if not self._share.reserve(samples * self.sample_size(ticket, shares=shares)):
                    return False
                ticket.shares_prompt = shares
                self._hand_out(prompt, ticket, cached=len(prompt.tokens))
                return True
        return False

    def _take_idle_or_new(self, ticket: Ticket, samples: int) -> bool:
        length = len(ticket.tokens)
        found, common = self._find(ticket)
        needed = self.size(length) + samples * self.sample_size(ticket)
        if found is not None and found.is_complete and common == len(found.tokens) == length:
            if not self._share.take(found, needed):
                return False
            self._in_use.append(found)
            self._hand_out(found, ticket, cached=length)
            return True
        if not self._share.reserve(needed):
            return False
        prompt = Prompt(ticket.tokens, ticket.adapter, ticket.request.owner)
        if ticket.request.prompt_logprobs:
            prompt.scores = []
        common = min(common, length - 1)  # the last one brings the first token
        if found is not None and common > 0:
            prompt.adopt(found, common)
        self._in_use.append(prompt)
        self._unfinished.append((ticket.adapter, prompt))
        self._hand_out(prompt, ticket, cached=common)
        return True

    def _find(self, ticket: Ticket) -> tuple[Prompt | None, int]:
        request = ticket.request
        if self._is_alone or request.prompt_logprobs:
            return None, 0
        return self._share.memory.find(self._base, ticket.adapter, request.owner, ticket.tokens)

    def sample_size(self, ticket: Ticket, *, shares: bool | None = None) -> int:
        """The most that one sample can come to, beside a prompt that it shares."""
        shares = ticket.shares_prompt if shares is None else shares
        own = 0 if shares else len(ticket.tokens)
        most = ticket.request.max_tokens
        return self.size(capacity(own + most)) if most else 0

    @staticmethod
    def _hand_out(prompt: Prompt, ticket: Ticket, *, cached: int) -> None:
        prompt.users += 1
        ticket.prompt = prompt
        ticket.cached_tokens = cached
