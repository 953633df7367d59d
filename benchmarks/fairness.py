"""How long requests wait while eight sessions train and sample on one engine, SmolLM2-135M.

Beside the bound that docs/engine.md states, made of the longest turn and the longest pass of the
same run. A ratio of 1 and more keeps it.
"""

import asyncio
import time
from collections.abc import Iterator

import numpy as np

from benchmarks import smollm2
from benchmarks.rows import Row
from session.engine.local import LocalEngine
from session.engine.port import BaseRef, Datum, LoraConfig, Loss, SampleRequest

SESSIONS = 8
CALLS = 6  # of each session
TOKENS = 256  # of a call: one turn
SAMPLED = 16  # of each request, which follow each other until training is over


class Bench:
    def __init__(self, engine: LocalEngine, base: BaseRef) -> None:
        self._engine = engine
        self._base = base
        self._random = np.random.default_rng(0)
        self.calls: list[float] = []
        self.gaps: list[float] = []

    async def together(self) -> None:
        trainers = [asyncio.create_task(self._train(f"s{n}", CALLS)) for n in range(SESSIONS)]
        over = asyncio.gather(*trainers)
        await asyncio.gather(over, *(self._sample(f"s{n}", over) for n in range(SESSIONS)))

    async def alone(self) -> tuple[float, float]:
        """The longest turn of training and the longest pass."""
        before = self.calls, self.gaps
        self.calls, self.gaps = [], []
        await self._train("s0", CALLS)
        for _ in range(3):
            await asyncio.gather(*(self._one(f"s{n}") for n in range(SESSIONS)))
        longest = max(self.calls), max(self.gaps)
        self.calls, self.gaps = before
        return longest

    async def _train(self, name: str, calls: int) -> None:
        for _ in range(calls):
            tokens = self._random.integers(3, 40_000, TOKENS + 1)
            datum = Datum(tokens[:-1], {"target_tokens": tokens[1:]})
            begun = time.perf_counter()
            await self._engine.forward_backward(name, [datum], loss=Loss.cross_entropy, config={})
            self.calls.append(time.perf_counter() - begun)

    async def _sample(self, name: str, over: "asyncio.Future[list[None]]") -> None:
        while not over.done():
            await self._one(name)

    async def _one(self, name: str) -> None:
        prompt = self._random.integers(3, 40_000, 32)
        request = SampleRequest(self._base, name, prompt, max_tokens=SAMPLED, stop_ids=())
        last = time.perf_counter()
        async for _ in self._engine.sample(request):
            self.gaps.append(time.perf_counter() - last)
            last = time.perf_counter()


def run() -> Iterator[Row]:
    turn, one_pass, calls, gaps = asyncio.run(_measured())
    bounds = {
        "a training call": (calls, SESSIONS * turn + SESSIONS * (turn + one_pass)),
        "the next token": (gaps, turn + one_pass),
    }
    for what, (waits, bound) in bounds.items():
        note = f"median {np.median(waits):.2f}"
        yield Row(f"longest wait for {what}", max(waits), "s", "bound", bound, False, note)


async def _measured() -> tuple[float, float, list[float], list[float]]:
    base, engine = smollm2.base(), LocalEngine(**smollm2.engine_settings().model_dump())
    for n in range(SESSIONS):
        lora = LoraConfig(8, 16.0, ("q_proj", "v_proj"), seed=n)
        await engine.create_model(f"s{n}", base=base, lora=lora)
    bench = Bench(engine, base)
    turn, one_pass = await bench.alone()
    await bench.together()
    again = await bench.alone()
    await engine.close()
    return max(turn, again[0]), max(one_pass, again[1]), bench.calls, bench.gaps
