"""One thread for all: turns interleave, errors arrive, and closing ends it."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from session.engine.local import LocalEngine
from session.engine.port import (
    BaseRef,
    EngineError,
    Loss,
    PoisonedGradient,
    SampleChunk,
    SampleRequest,
)
from support.tiny import ADAM, LORA, tiny_datum

DATA = [tiny_datum(length, seed=length) for length in (30, 20, 31, 12)]
PROMPT = tiny_datum(6).tokens


@pytest.fixture
async def engine(ref: BaseRef) -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(micro_batch_tokens=32, threads=1)
    await engine.create_model("a", base=ref, lora=LORA)
    yield engine
    await engine.close()


async def train(engine: LocalEngine) -> list[float]:
    results = await engine.forward_backward("a", DATA, loss=Loss.cross_entropy, config={})
    await engine.optim_step("a", replace(ADAM, learning_rate=5e-2))
    return [each.loss for each in results]


async def tokens(chunks: AsyncIterator[SampleChunk]) -> list[int]:
    return [token async for chunk in chunks for token in chunk.tokens]


def request(ref: BaseRef, max_tokens: int = 40) -> SampleRequest:
    return SampleRequest(ref, "a", PROMPT, max_tokens=max_tokens, stop_ids=(), temperature=0.0)


async def test_a_sample_keeps_the_weights_of_its_admission(
    engine: LocalEngine, ref: BaseRef
) -> None:
    expected = await tokens(engine.sample(request(ref)))
    admitted = engine.sample(request(ref))
    found, _ = await asyncio.gather(tokens(admitted), train(engine))
    assert found == expected
    assert await tokens(engine.sample(request(ref))) != expected


async def test_training_gives_the_same_bits_whatever_else_runs(
    engine: LocalEngine, ref: BaseRef
) -> None:
    await engine.create_model("quiet", base=ref, lora=LORA)
    await engine.create_model("other", base=ref, lora=replace(LORA, seed=9))
    alone = await engine.forward_backward("quiet", DATA, loss=Loss.cross_entropy, config={})
    together = await asyncio.gather(
        engine.forward_backward("a", DATA, loss=Loss.cross_entropy, config={}),
        engine.forward_backward("other", DATA, loss=Loss.cross_entropy, config={}),
        tokens(engine.sample(request(ref))),
        tokens(engine.sample(request(ref))),
    )
    assert [each.loss for each in together[0]] == [each.loss for each in alone]
    norms = [(await engine.optim_step(name, ADAM)).grad_norm for name in ("a", "quiet")]
    assert norms[0] == norms[1]


async def test_samples_arrive_while_training_runs(engine: LocalEngine, ref: BaseRef) -> None:
    order: list[str] = []

    async def watch(chunks: AsyncIterator[SampleChunk]) -> None:
        order.extend(["token" async for _ in chunks])

    async def work() -> None:
        for _ in range(3):
            await train(engine)
        order.append("trained")

    await asyncio.gather(watch(engine.sample(request(ref, 6))), work())
    assert order == ["token"] * 6 + ["trained"]


async def test_a_closed_sample_does_no_more_work(engine: LocalEngine, ref: BaseRef) -> None:
    chunks = engine.sample(request(ref, 400))
    assert (await anext(chunks)).tokens
    await chunks.aclose()  # type: ignore[attr-defined]  # an async generator
    with pytest.raises(StopAsyncIteration):
        await anext(chunks)


async def test_a_cancelled_forward_backward_poisons(engine: LocalEngine) -> None:
    data = [tiny_datum(400)] * 30
    task = asyncio.create_task(
        engine.forward_backward("a", data, loss=Loss.cross_entropy, config={})
    )
    await engine.forward("a", DATA, loss=Loss.cross_entropy, config={})  # its first turn is over
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(PoisonedGradient):
        await engine.optim_step("a", ADAM)
    await train(engine)


async def test_an_error_in_the_thread_reaches_its_caller_and_the_next_call_works(
    engine: LocalEngine, ref: BaseRef
) -> None:
    bad = replace(request(ref), prompt=np.array([9999]))
    with pytest.raises(EngineError, match=r"prompt\[0\] is 9999"):
        await tokens(engine.sample(bad))
    assert len(await train(engine)) == 4


async def test_closing_fails_what_still_runs_and_ends_the_thread(ref: BaseRef) -> None:
    engine = LocalEngine(micro_batch_tokens=32)
    await engine.create_model("a", base=ref, lora=LORA)
    running = asyncio.create_task(tokens(engine.sample(request(ref, 500))))
    await engine.forward("a", DATA, loss=Loss.cross_entropy, config={})
    await engine.close()
    with pytest.raises(EngineError, match="the engine is closed"):
        await running
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("engine")]


async def test_closing_waits_for_files_being_written(ref: BaseRef, tmp_path: Path) -> None:
    engine = LocalEngine()
    await engine.create_model("a", base=ref, lora=LORA)
    written = await engine.save("a", tmp_path, with_optimizer=True)
    await engine.close()
    assert (tmp_path / "state/state.json").exists()
    await written


async def test_a_file_that_cannot_be_written_fails_the_handle(
    engine: LocalEngine, tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    written = await engine.save("a", tmp_path / "taken", with_optimizer=False)
    with pytest.raises(OSError, match="taken"):
        await written


def test_importing_the_engine_brings_no_torch() -> None:
    code = "import sys, session.engine.local; sys.exit('torch' in sys.modules)"
    root = Path(__file__).parents[4]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


@pytest.mark.parametrize("device", ["nowhere", "cuda:99"])
def test_a_device_that_torch_cannot_use_is_refused_at_once(device: str) -> None:
    with pytest.raises(EngineError, match=f"torch cannot use the device '{device}' "):
        LocalEngine(device=device)
