"""What the service adds: an operation that computes nothing, and a step beside its engine's time

Milliseconds from a call of our client to its result over HTTP on loopback, api and worker each in a
process of its own. The peer is a bare FastAPI handler that inserts a row, commits and reads it
back, over the same driver, asked by httpx. Both are asked in turn.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import numpy as np

import modelyard
from benchmarks import smollm2
from benchmarks.million.timing import percentile
from benchmarks.rows import Row
from benchmarks.servers import await_answer
from modelyard import AdamParams, Datum, ModelInput
from session.engine import port
from session.engine.local import LocalEngine
from support.postgres import free_port, fresh_postgres, postgres_server
from support.service import Service, serving
from support.service import modelyard as command
from support.tiny import tiny_model

_WARM_UP, _TURNS = 20, 200
_LARGE = 2**20  # bytes of tokens and targets
_START_S = 30.0
Call = Callable[[], object]


def run() -> Iterator[Row]:
    yield from _compared("SQLite", None)
    with postgres_server() as server, fresh_postgres(server) as url:
        yield from _compared("PostgreSQL", url)


def _compared(name: str, url: str | None) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        home = Path(folder) / "home"
        settings = {} if url is None else {"MODELYARD_DATABASE__URL": url}
        service = stack.enter_context(serving(home, settings=settings))
        tiny = tiny_model(Path(folder) / "tiny")
        assert not command(home, "models", "add", "tiny", str(tiny), settings=settings).returncode
        handler = stack.enter_context(_bare(url or f"sqlite:///{folder}/bare.db"))
        client = modelyard.ServiceClient(url=service.url, api_key=service.api_key)
        training = client.create_lora_training_client("tiny", rank=4, seed=1)
        engine = stack.enter_context(_engine(tiny))
        theirs, empty, step, apart, computed = _in_turns(
            lambda: handler.post("/rows").raise_for_status().json(),
            lambda: training.clear_gradient().result(),
            lambda: _step(training),
            lambda: _step_apart(training),
            engine,
        )
        yield _row(f"{name}: clear_gradient", empty, theirs)
        own = percentile(computed, 0.5)
        beyond = [taken - own for taken in step]
        what = f"forward_backward and optim_step, pipelined, beyond the {own:.1f} of the engine"
        yield _row(f"{name}: {what}", beyond, theirs)
        yield _row(f"{name}: the same, each awaited, all of it", apart, theirs)
        yield from _beside_a_large_batch(name, service, training)
        client.close()


def _beside_a_large_batch(
    name: str, service: Service, training: modelyard.TrainingClient
) -> Iterator[Row]:
    """How long others wait while batches of a megabyte come in: one that is refused where it is
    computed, so that the engine takes no time from anybody."""
    large = [
        Datum(ModelInput.from_ints([10**9] * 512), {"target_tokens": [1] * 512})
        for _ in range(_LARGE // (512 * 16))
    ]
    headers = {"Authorization": f"Bearer {service.api_key}"}
    with httpx.Client(base_url=service.url, headers=headers, trust_env=False) as other:

        def ask() -> None:
            other.get("/v1/models").raise_for_status()

        alone = _in_turns(ask)[0]
        is_over = threading.Event()

        def send() -> None:
            while not is_over.is_set():
                training.forward_backward(large).exception()

        sender = threading.Thread(target=send)
        sender.start()
        beside = _in_turns(ask)[0]
        is_over.set()
        sender.join()
    yield Row(
        f"{name}: GET /v1/models while batches of 1 MiB come, 99th percentile",
        percentile(beside, 0.99),
        "ms",
        peer="none come",
        theirs=percentile(alone, 0.99),
        more_is_better=False,
        note=f"most {max(beside):.1f}, alone {max(alone):.1f}",
    )


def _step(training: modelyard.TrainingClient) -> None:
    first = training.forward_backward(_BATCH)
    training.optim_step(AdamParams(1e-4)).result()
    first.result()


def _step_apart(training: modelyard.TrainingClient) -> None:
    training.forward_backward(_BATCH).result()
    training.optim_step(AdamParams(1e-4)).result()


_TOKENS, _TARGETS, _WEIGHTS = [1, 2, 3, 4], [2, 3, 4, 5], [1.0, 1.0, 1.0, 1.0]
_BATCH = [
    Datum(ModelInput.from_ints(_TOKENS), {"target_tokens": _TARGETS, "weights": _WEIGHTS}),
]


@contextmanager
def _engine(tiny: Path) -> Iterator[Call]:
    """The same step on an engine in this process."""
    weights = np.array(_WEIGHTS, np.float32)
    inputs = {"target_tokens": np.array(_TARGETS), "weights": weights}
    data = [port.Datum(np.array(_TOKENS), inputs)]
    lora = port.LoraConfig(4, 32.0, (*smollm2.TARGETS, "lm_head"), seed=1)
    adam = port.AdamParams(1e-4, 0.9, 0.95, 1e-12, 0.0, None)
    with asyncio.Runner() as runner:
        engine = LocalEngine()
        base = port.BaseRef("tiny", "tiny", tiny)
        runner.run(engine.create_model("m", base=base, lora=lora))

        async def step() -> None:
            await engine.forward_backward("m", data, loss=port.Loss.cross_entropy, config={})
            await engine.optim_step("m", adam)

        yield lambda: runner.run(step())
        runner.run(engine.close())


def _in_turns(*calls: Call) -> list[list[float]]:
    taken: list[list[float]] = [[] for _ in calls]
    for turn in range(_WARM_UP + _TURNS):
        for call, times in zip(calls, taken, strict=True):
            begin = time.perf_counter()
            call()
            if turn >= _WARM_UP:
                times.append((time.perf_counter() - begin) * 1000)
    return taken


def _row(what: str, ours: list[float], theirs: list[float]) -> Row:
    tails = f"p99 {percentile(ours, 0.99):.1f}, theirs {percentile(theirs, 0.99):.1f}"
    return Row(
        what,
        percentile(ours, 0.5),
        "ms",
        peer="bare handler",
        theirs=percentile(theirs, 0.5),
        more_is_better=False,
        note=f"least {min(ours):.1f}, theirs {min(theirs):.1f}; {tails}",
    )


@contextmanager
def _bare(database: str) -> Iterator[httpx.Client]:
    at = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bare.handler", database, str(at)], env=os.environ
    )
    try:
        url = f"http://127.0.0.1:{at}"
        with httpx.Client(base_url=url, trust_env=False) as client:
            await_answer(f"{url}/openapi.json", process, "the bare handler", within_s=_START_S)
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
