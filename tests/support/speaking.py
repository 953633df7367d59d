"""An engine and a sampler that say what a test wants to hear, token by token."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from registry.access.actor import Actor
from session.api.openai import LiveModel, Resolved
from session.api.openai_errors import ModelNotFound
from session.engine.port import EngineError, SampleChunk, SampleRequest
from session.sampling.chat import ChatTokenizer
from support.engines import FakeEngine
from support.tiny import CONTEXT, END_ID


@dataclass
class Script:
    """`text`, then the end token; `fails_after` so many tokens, if ever."""

    directory: Path
    text: str = "The capital of France is Paris."
    delay_s: float = 0.0
    fails_after: int | None = None
    error: type[Exception] = EngineError
    spoken: int = field(default=0, init=False)
    cut: int = field(default=0, init=False)
    asked: list[Any] = field(default_factory=list, init=False)

    @property
    def tokens(self) -> list[int]:
        return [*ChatTokenizer(self.directory).encode(self.text), END_ID]

    async def speak(self, *, max_tokens: int, n: int) -> AsyncIterator[SampleChunk]:
        """Counts tokens in `spoken`, and in `cut` how often it was closed before its end."""
        said, is_over = self.tokens[:max_tokens], False
        try:
            for position, token in enumerate(said):
                if position == self.fails_after:
                    is_over = True
                    raise self.error("the weights are not finite")
                self.spoken += 1
                last = position + 1 == len(said)
                reason = ("stop" if token == END_ID else "length") if last else None
                for index in range(n):
                    yield SampleChunk(index, (token,), (-0.5,), reason)
                await asyncio.sleep(self.delay_s)
            is_over = True
        finally:
            self.cut += not is_over


class SpeakingEngine(FakeEngine):
    """Serves the script instead of a model."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script

    def sample(self, request: SampleRequest) -> AsyncIterator[SampleChunk]:
        self.script.asked.append(request)
        return self.script.speak(max_tokens=request.max_tokens, n=request.n)


class SpeakingSampler:
    """The live weights of one session, `my-session`, which is also `facts@7`."""

    def __init__(self, script: Script) -> None:
        self.script = script

    async def models(self, actor: Actor) -> Sequence[LiveModel]:
        return [LiveModel("my-session", datetime(2026, 1, 2, tzinfo=UTC))]

    async def resolve(self, actor: Actor, model: str) -> Resolved:
        if model not in ("my-session", "facts@7"):
            raise ModelNotFound(model)
        return Resolved(self.script.directory, CONTEXT)

    def sample(
        self, actor: Actor, resolved: Resolved, *, max_tokens: int, n: int, **options: Any
    ) -> AsyncIterator[SampleChunk]:
        self.script.asked.append(options)
        return self.script.speak(max_tokens=max_tokens, n=n)
