"""Training 8 sequences of 512 tokens: the peak of memory, beside a hand-written loop.

SmolLM2-135M with its vocabulary of 49,152. Each runs in a process of its own: all of its memory on
a CPU, torch's share of the device's elsewhere.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import torch

from benchmarks import smollm2
from benchmarks.plain_training import PlainLoop
from benchmarks.processes import peak_bytes
from benchmarks.rows import Row
from session.engine.local import LocalEngine
from session.engine.port import Loss

GIB = 2**30
LENGTHS = [512] * 8
AT_ONCE = sum(LENGTHS)
BOUND = 4.0  # GiB, with our defaults


def run() -> Iterator[Row]:
    peaks = {name: _child(name) for name in ("loop", "whole", "recomputed", "defaults")}
    peer, unit = "PEFT, all at once", "GiB"
    for name, what, note in (
        ("whole", "4096 tokens at once", "layers computed once"),
        ("recomputed", "4096 tokens at once", "layers computed twice, as by default"),
    ):
        yield Row(what, peaks[name], unit, peer, peaks["loop"], more_is_better=False, note=note)
    yield Row("our defaults", peaks["defaults"], unit, "the bound", BOUND, more_is_better=False)


def _child(name: str) -> float:
    command = [sys.executable, "-m", "benchmarks.training_memory", name]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(said.splitlines()[-1])


def _train(name: str) -> float:
    settings, base = smollm2.engine_settings(), smollm2.base()
    data = smollm2.batch(LENGTHS)
    where = {"dtype": settings.dtype, "device": settings.device}
    if name == "loop":
        PlainLoop(base.path, smollm2.LORA, smollm2.ADAM, **where).step([data])
        return _peak(settings.device)
    whole = {"micro_batch_tokens": AT_ONCE, "activation_bytes": 2**50}
    sizes = {"whole": whole, "recomputed": {"micro_batch_tokens": AT_ONCE}, "defaults": {}}[name]
    engine = LocalEngine(**sizes, dtype=settings.dtype, device=settings.device)

    async def step() -> None:
        await engine.create_model("m", base=base, lora=smollm2.LORA)
        await engine.forward_backward("m", data, loss=Loss.cross_entropy, config={})
        await engine.optim_step("m", smollm2.ADAM)
        await engine.close()

    asyncio.run(step())
    return _peak(settings.device)


def _peak(device: str) -> float:
    if device != "cpu":
        return torch.cuda.max_memory_allocated(device) / GIB
    return peak_bytes() / GIB


if __name__ == "__main__":
    print(_train(sys.argv[1]))  # noqa: T201  (its one line, which `_child` reads)
