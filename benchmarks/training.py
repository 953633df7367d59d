"""Training on a batch of mixed lengths: tokens a second beside a hand-written loop.

SmolLM2-135M, LoRA of rank 16 on all linear layers of the body, forward, backward and AdamW. All
take turns, in another order each time, ours and theirs in processes of their own; medians.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from statistics import median

import numpy as np
import torch

from benchmarks import smollm2
from benchmarks.plain_training import PlainLoop, sorted_groups
from benchmarks.processes import own_process
from benchmarks.rows import Row
from benchmarks.turns import in_turns
from session.engine.local import LocalEngine
from session.engine.port import Datum, Loss

TURNS = 5
DATUMS = 12
SHORTEST, LONGEST = 16, 512
BUDGETS = (512, 2048)  # of the hand-written loop; the better one counts
Mover = Callable[[int], object]


def run() -> Iterator[Row]:
    settings = smollm2.engine_settings()
    random = np.random.default_rng(0)
    data = smollm2.batch(random.integers(SHORTEST, LONGEST + 1, DATUMS).tolist())
    with ExitStack() as stack:
        movers = {**stack.enter_context(_plain(data)), "ours": stack.enter_context(_ours(data))}
        times = in_turns(movers, TURNS)
    tokens = sum(len(datum.tokens) for datum in data)
    speeds = {name: tokens / median(taken) for name, taken in times.items()}
    best = max((name for name in speeds if name.startswith("sorted")), key=speeds.__getitem__)
    note = f"{settings.dtype} on {settings.device}, {tokens} tokens"
    for peer, what in ((best, "sorted by length, real positions"), ("padded", "all padded")):
        yield Row(what, speeds["ours"], "tokens/s", f"PEFT, {peer}", speeds[peer], note=note)


@contextmanager
def _plain(data: Sequence[Datum]) -> Iterator[dict[str, Mover]]:
    with own_process() as process:

        def mover(budget: int | None) -> Mover:
            return lambda _: process.submit(_plain_step, data, budget).result()

        yield {**{f"sorted, {each}": mover(each) for each in BUDGETS}, "padded": mover(None)}


def _plain_step(data: Sequence[Datum], budget: int | None) -> None:
    if budget is None:
        _loop().step([data], padded_head=True)
    else:
        _loop().step(sorted_groups(data, budget))


@cache
def _loop() -> PlainLoop:
    settings = smollm2.engine_settings()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    path, device = smollm2.base().path, settings.device
    return PlainLoop(path, smollm2.LORA, smollm2.ADAM, dtype=settings.dtype, device=device)


@contextmanager
def _ours(data: Sequence[Datum]) -> Iterator[Mover]:
    with asyncio.Runner() as runner:
        engine = LocalEngine(**smollm2.engine_settings().model_dump())
        runner.run(engine.create_model("m", base=smollm2.base(), lora=smollm2.LORA))
        yield lambda _: runner.run(_step(engine, data))
        runner.run(engine.close())


async def _step(engine: LocalEngine, data: Sequence[Datum]) -> None:
    await engine.forward_backward("m", data, loss=Loss.cross_entropy, config={})
    await engine.optim_step("m", smollm2.ADAM)
