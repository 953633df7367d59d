"""Training on a batch of mixed lengths: tokens a second beside a hand-written loop.

SmolLM2-135M, LoRA of rank 16 on all linear layers of the body, forward, backward and AdamW. All
take turns, in another order each time; medians.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from statistics import median

import numpy as np
import torch

from benchmarks import smollm2
from benchmarks.plain_training import PlainLoop, sorted_groups
from benchmarks.rows import Row
from benchmarks.turns import in_turns
from session.engine.local import LocalEngine
from session.engine.port import Datum, Loss

TURNS = 5
DATUMS = 12
SHORTEST, LONGEST = 16, 512
BUDGETS = (512, 2048)  # of the hand-written loop; the better one counts


def run() -> Iterator[Row]:
    settings, base = smollm2.engine_settings(), smollm2.base()
    random = np.random.default_rng(0)
    data = smollm2.batch(random.integers(SHORTEST, LONGEST + 1, DATUMS).tolist())
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    loop = PlainLoop(
        base.path, smollm2.LORA, smollm2.ADAM, dtype=settings.dtype, device=settings.device
    )
    movers: dict[str, Callable[[int], object]] = {
        f"sorted, {budget}": lambda _, budget=budget: loop.step(sorted_groups(data, budget))  # type: ignore[misc]  # its default
        for budget in BUDGETS
    }
    movers["padded"] = lambda _: loop.step([data], padded_head=True)
    with asyncio.Runner() as runner:
        engine = LocalEngine(**settings.model_dump())
        runner.run(engine.create_model("m", base=base, lora=smollm2.LORA))
        movers["ours"] = lambda _: runner.run(_step(engine, data))
        times = in_turns(movers, TURNS)
        runner.run(engine.close())
    tokens = sum(len(datum.tokens) for datum in data)
    speeds = {name: tokens / median(taken) for name, taken in times.items()}
    best = max((name for name in speeds if name.startswith("sorted")), key=speeds.__getitem__)
    note = f"{settings.dtype} on {settings.device}, {tokens} tokens"
    for peer, what in ((best, "sorted by length, real positions"), ("padded", "all padded")):
        yield Row(what, speeds["ours"], "tokens/s", f"PEFT, {peer}", speeds[peer], note=note)


async def _step(engine: LocalEngine, data: Sequence[Datum]) -> None:
    await engine.forward_backward("m", data, loss=Loss.cross_entropy, config={})
    await engine.optim_step("m", smollm2.ADAM)
