"""The bytes that sampling may keep, and the prompts that stay for who asks next."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from session.engine.compute.keys import Prompt
from session.engine.compute.lora import Adapter
from session.engine.compute.model import BaseModel


class Memory:
    """One account of bytes for all that samples. Whoever runs reserves the most it can come to;
    complete prompts that nobody uses stay while there is room, the least recently used go first."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.reserved = 0
        self._idle: dict[Prompt, tuple[BaseModel, int]] = {}  # the oldest first

    @property
    def idle(self) -> int:
        return sum(size for _, size in self._idle.values())

    def reserve(self, size: int) -> bool:
        """Whether there was room, idle prompts put aside."""
        self._forget([each for each in self._idle if each.is_forgotten])
        if self.reserved + size > self.budget:
            return False
        self.reserved += size
        self._shrink()
        return True

    def take(self, prompt: Prompt, needed: int) -> bool:
        """`reserve` for who uses this idle prompt, whose own bytes are part of what is needed."""
        entry = self._idle.pop(prompt)
        if self.reserve(needed):
            return True
        self._idle[prompt] = entry
        return False

    def free(self, size: int) -> None:
        self.reserved -= size

    def keep(self, base: BaseModel, prompt: Prompt, size: int) -> None:
        """Of a complete prompt whose bytes are no longer reserved. It replaces its beginnings."""
        shorter = [
            each
            for each, (other, _) in self._idle.items()
            if other is base
            and each.is_like(prompt)
            and prompt.in_common(each.tokens) == len(each.tokens)
        ]
        self._forget(shorter)
        self._idle[prompt] = (base, size)
        self._shrink()

    def find(
        self, base: BaseModel, adapter: Adapter | None, owner: str, tokens: npt.NDArray[np.int64]
    ) -> tuple[Prompt | None, int]:
        """The idle prompt that shares the longest beginning, and how long that is."""
        found: tuple[Prompt | None, int] = (None, 0)
        for prompt, (other, _) in self._idle.items():
            if other is base and prompt.belongs_to(adapter, owner):
                common = prompt.in_common(tokens)
                if common > found[1]:
                    found = (prompt, common)
        if found[0] is not None:
            self._idle[found[0]] = self._idle.pop(found[0])
        return found

    def drop_idle(self) -> None:
        self._idle.clear()

    def _shrink(self) -> None:
        over = self.reserved + self.idle - self.budget
        going = []
        for prompt, (_, size) in self._idle.items():
            if over <= 0:
                break
            going.append(prompt)
            over -= size
        self._forget(going)

    def _forget(self, prompts: Sequence[Prompt]) -> None:
        for prompt in prompts:
            del self._idle[prompt]


class Share:
    """What one running batch has reserved of the memory: all of it can be given back at once,
    whatever state the batch is in."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.reserved = 0

    def reserve(self, size: int) -> bool:
        return self._note(size, is_reserved=self.memory.reserve(size))

    def take(self, prompt: Prompt, needed: int) -> bool:
        return self._note(needed, is_reserved=self.memory.take(prompt, needed))

    def free(self, size: int) -> None:
        self.memory.free(size)
        self.reserved -= size

    def free_all(self) -> None:
        self.free(self.reserved)

    def _note(self, size: int, *, is_reserved: bool) -> bool:
        if is_reserved:
            self.reserved += size
        return is_reserved


def token_bytes(base: BaseModel) -> int:
    """Of one position's keys and values in all layers."""
    config = base.config
    heads = config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * config.num_hidden_layers * groups * size * base.dtype.itemsize)
