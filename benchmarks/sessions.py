"""Sessions that share a base: what the tenth takes, and what going from one to another takes

SmolLM2-135M, LoRA of rank 32 on all linear layers of the body, each session with its moments and a
gradient. The bounds: 1.1 times the bytes of adapter, moments and gradient, and 1 ms.
"""

import asyncio
import ctypes
import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

import torch

from benchmarks import smollm2
from benchmarks.processes import resident_bytes
from benchmarks.rows import Row
from session.engine.local import LocalEngine
from session.engine.port import Datum, Loss

SESSIONS = 10
LORA = replace(smollm2.LORA, rank=32)
CHANGES = 60
MIB = 2**20


def run() -> Iterator[Row]:
    yield from asyncio.run(_measured())


async def _measured() -> list[Row]:
    settings = smollm2.engine_settings()
    engine, data = LocalEngine(**settings.model_dump()), smollm2.batch([64])
    held = []
    for number in range(SESSIONS):
        await _train(engine, f"s{number}", number, data)
        held.append(_held(settings.device))
    tenth = held[-1] - held[-2]
    same, other = await _changes(engine, smollm2.batch([16]))
    await engine.close()
    bound = 1.1 * 4 * _adapter_bytes() / MIB
    return [
        Row("the tenth session", tenth / MIB, "MiB", "the bound", bound, more_is_better=False),
        Row(
            "forward after another session's, beyond one after its own",
            other - same,
            "ms",
            "the bound",
            1.0,
            more_is_better=False,
            note=f"medians of {CHANGES}: {other:.2f} and {same:.2f}",
        ),
    ]


async def _train(engine: LocalEngine, name: str, seed: int, data: Sequence[Datum]) -> None:
    await engine.create_model(name, base=smollm2.base(), lora=replace(LORA, seed=seed))
    await engine.forward_backward(name, data, loss=Loss.cross_entropy, config={})
    await engine.optim_step(name, smollm2.ADAM)
    await engine.forward_backward(name, data, loss=Loss.cross_entropy, config={})


async def _changes(engine: LocalEngine, data: Sequence[Datum]) -> tuple[float, float]:
    """Milliseconds of a forward after one of the same session, and after one of another."""
    taken: dict[bool, list[float]] = {True: [], False: []}
    before = ""
    for number in range(2 * CHANGES):
        name = f"s{number // 2 % 2}"  # twice each
        begun = time.perf_counter()
        await engine.forward(name, data, loss=Loss.cross_entropy, config={})
        taken[name == before].append((time.perf_counter() - begun) * 1000)
        before = name
    return median(taken[True]), median(taken[False])


def _held(device: str) -> int:
    """Bytes that this process holds, what its allocator could give back aside."""
    gc.collect()
    if device != "cpu":
        return torch.cuda.memory_allocated(device)
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return resident_bytes()


def _adapter_bytes() -> int:
    """In float32, from the shapes of SmolLM2-135M's layers."""
    hidden, of_groups, inner, layers = 576, 192, 1536, 30
    ends = 2 * (hidden + hidden) + 2 * (hidden + of_groups) + 3 * (hidden + inner)
    return 4 * LORA.rank * ends * layers
