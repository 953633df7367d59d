"""Tokens a second of 16 samples, SmolLM2-135M, 64 new tokens each.

Against model.generate on the padded batch and for each request, and against vLLM's CPU build, each
in the same precision. All take turns with fresh prompts, in another order each time; medians.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from benchmarks import smollm2
from benchmarks.rows import Row
from benchmarks.vllm import TOKENS, Peer, Prompts, vllm
from session.engine.local import LocalEngine
from session.engine.port import BaseRef, SampleRequest

LENGTHS = range(16, 144, 8)
LONG = 512
TURNS = 3


@dataclass(frozen=True)
class Work:
    """`lengths` of the prompts, and how many samples of each."""

    what: str
    lengths: Sequence[int]
    n: int

    def prompts(self, turn: int) -> Prompts:
        random = np.random.default_rng((turn, len(self.lengths)))
        return [random.integers(10, 40_000, length).tolist() for length in self.lengths]


WORKS = (Work("16 requests", LENGTHS, 1), Work("n = 16 of a prompt of 512", (LONG,), 16))


def run() -> Iterator[Row]:
    path = smollm2.base().path
    for dtype in ("float32", "bfloat16"):
        with ExitStack() as stack:
            peers = {"ours": stack.enter_context(_ours(path, dtype)), **_generate(path, dtype)}
            if dtype == "bfloat16" and (server := stack.enter_context(vllm(path))):
                peers["vLLM"] = server
            for work in WORKS:
                yield from _rows(work, dtype, _measured(work, peers))


def _rows(work: Work, dtype: str, speeds: dict[str, float]) -> Iterator[Row]:
    for peer, theirs in speeds.items():
        if peer != "ours":
            yield Row(f"{work.what}, {dtype}", speeds["ours"], "tokens/s", peer, theirs)


def _measured(work: Work, peers: dict[str, Peer]) -> dict[str, float]:
    names = [name for name in peers if not (name == "one by one" and work.n > 1)]
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-1, TURNS):  # the first warms up
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            begun = time.perf_counter()
            peers[name](work.prompts(turn + 1), work.n)
            times[name].append(time.perf_counter() - begun)
    count = TOKENS * len(work.lengths) * work.n
    return {name: count / median(taken[1:]) for name, taken in times.items()}


@contextmanager
def _ours(path: Path, dtype: str) -> Iterator[Peer]:
    base = BaseRef("smollm2", dtype, path)
    with asyncio.Runner() as runner:
        engine = runner.run(_engine(dtype))

        async def one(prompt: list[int], n: int) -> None:
            request = SampleRequest(
                base, None, np.array(prompt), max_tokens=TOKENS, n=n, stop_ids=()
            )
            async for _ in engine.sample(request):
                pass

        async def all_of(prompts: Prompts, n: int) -> None:
            await asyncio.gather(*(one(prompt, n) for prompt in prompts))

        yield lambda prompts, n: runner.run(all_of(prompts, n))
        runner.run(engine.close())


async def _engine(dtype: str) -> LocalEngine:
    settings = smollm2.engine_settings()
    return LocalEngine(dtype=dtype, device=settings.device, threads=settings.threads)


def _generate(path: Path, dtype: str) -> dict[str, Peer]:
    device = smollm2.engine_settings().device
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    model.to(device)
    model.generation_config.eos_token_id = None  # only the length stops

    @torch.no_grad()
    def padded(prompts: Prompts, n: int) -> None:
        longest = max(map(len, prompts))
        ids = [[0] * (longest - len(each)) + each for each in prompts]
        mask = [[0] * (longest - len(each)) + [1] * len(each) for each in prompts]
        model.generate(
            input_ids=torch.tensor(ids, device=device),
            attention_mask=torch.tensor(mask, device=device),
            max_new_tokens=TOKENS,
            do_sample=True,
            top_k=0,
            pad_token_id=0,
            num_return_sequences=n,
        )

    def one_by_one(prompts: Prompts, n: int) -> None:
        for prompt in prompts:
            padded([prompt], n)

    return {"padded generate": padded, "one by one": one_by_one}
