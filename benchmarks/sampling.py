"""Tokens a second of 16 samples, SmolLM2-135M, 64 new tokens each.

Against model.generate on the padded batch and for each request, and against vLLM's CPU build, each
in the same precision. All take turns with fresh prompts, each in a process of its own, in another
order each time; medians.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from benchmarks import smollm2
from benchmarks.processes import own_process
from benchmarks.rows import Row
from benchmarks.turns import in_turns
from benchmarks.vllm import TOKENS, Peer, Prompts, vllm
from session.engine.local import LocalEngine
from session.engine.port import BaseRef, SampleRequest

LENGTHS = range(16, 144, 8)
LONG = 512
TURNS = 3
SLOW = "one by one"  # and so far off that one turn will do


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
            ours = stack.enter_context(_ours(path, dtype))
            peers = {"ours": ours, **stack.enter_context(_generate(path, dtype))}
            if dtype == "bfloat16" and (server := stack.enter_context(vllm(path))):
                peers["vLLM"] = server
            for work in WORKS:
                yield from _rows(work, dtype, _measured(work, peers))


def _rows(work: Work, dtype: str, speeds: dict[str, float]) -> Iterator[Row]:
    for peer, theirs in speeds.items():
        if peer != "ours":
            yield Row(f"{work.what}, {dtype}", speeds["ours"], "tokens/s", peer, theirs)


def _measured(work: Work, peers: dict[str, Peer]) -> dict[str, float]:
    movers = {
        name: lambda turn, peer=peer: peer(work.prompts(turn), work.n)
        for name, peer in peers.items()
    }
    slow = movers.pop(SLOW)
    taken = in_turns(movers, TURNS)
    if work.n == 1:
        taken |= in_turns({SLOW: slow}, 1)
    count = TOKENS * len(work.lengths) * work.n
    return {name: count / median(seconds) for name, seconds in taken.items()}


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
    return LocalEngine(**{**smollm2.engine_settings().model_dump(), "dtype": dtype})


@contextmanager
def _generate(path: Path, dtype: str) -> Iterator[dict[str, Peer]]:
    with own_process() as process:

        def peer(mover: Callable[[Path, str, Prompts, int], None]) -> Peer:
            return lambda prompts, n: process.submit(mover, path, dtype, prompts, n).result()

        yield {"padded generate": peer(_padded), SLOW: peer(_one_by_one)}


def _one_by_one(path: Path, dtype: str, prompts: Prompts, n: int) -> None:
    for prompt in prompts:
        _padded(path, dtype, [prompt], n)


@torch.no_grad()
def _padded(path: Path, dtype: str, prompts: Prompts, n: int) -> None:
    model = _model(path, dtype)
    longest = max(map(len, prompts))
    ids = [[0] * (longest - len(each)) + each for each in prompts]
    mask = [[0] * (longest - len(each)) + [1] * len(each) for each in prompts]
    model.generate(
        input_ids=torch.tensor(ids, device=model.device),
        attention_mask=torch.tensor(mask, device=model.device),
        max_new_tokens=TOKENS,
        do_sample=True,
        top_k=0,
        pad_token_id=0,
        num_return_sequences=n,
    )


@cache
def _model(path: Path, dtype: str) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    model.generation_config.eos_token_id = None  # only the length stops
    return model.to(smollm2.engine_settings().device)
