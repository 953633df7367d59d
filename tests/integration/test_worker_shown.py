"""The api answers from the rows alone, whatever the worker does, and says what there is of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

import modelyard
from registry.kit.clock import now
from session.lifecycle.model import Worker as WorkerRow
from session.lifecycle.repository import WorkerRepository
from session.worker.context import Context
from session.worker.process import Worker
from support.engines import FakeEngine
from support.hosted import hosted
from support.lives import CLEAR, FORWARD_BACKWARD, STEP, Lives
from support.service import Service
from support.training import batch, eventually, get
from support.waiting import until


@pytest_asyncio.fixture
async def lives(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Lives]:
    monkeypatch.setattr("session.worker.channel._KNOWN_S", 0.0)  # it looks each time who is there
    async with hosted(tmp_path / "home", model=tiny) as service, service.client() as client:
        found = Lives(service, client)
        await found.start()
        yield found


async def test_while_the_worker_computes_everything_else_is_answered(lives: Lives) -> None:
    begun, free = asyncio.Event(), asyncio.Event()

    async def held(*_: Any, **__: Any) -> Any:
        begun.set()
        await free.wait()
        return []

    lives.service.engine.forward_backward = held  # type: ignore[method-assign]
    first = await lives.submit(1, FORWARD_BACKWARD)
    await begun.wait()
    assert (await lives.post(2, STEP)).status_code == 202
    shown = await lives.show()
    assert (shown["status"], shown["worker"], shown["restoring"]) == ("running", "live", False)
    found = (await lives.client.get(f"/v1/operations/{first}")).json()
    assert found["status"] in ("pending", "running")
    assert (await lives.client.get("/v1/sessions")).json()["data"][0]["worker"] == "live"
    free.set()


async def test_away_then_restoring_then_live(lives: Lives, tmp_path: Path) -> None:
    await lives.do(1, FORWARD_BACKWARD)
    await lives.service.worker.close()
    assert (await lives.show())["worker"] == "away"
    behind = await lives.submit(2, STEP)

    engine, begun, free = FakeEngine(), asyncio.Event(), asyncio.Event()
    make = engine.create_model

    async def held(*given: Any, **named: Any) -> None:
        begun.set()
        await free.wait()
        await make(*given, **named)

    engine.create_model = held  # type: ignore[method-assign]
    service = lives.service
    worker = Worker(Context("wrk_2", service.database, service.store, engine, tmp_path / "s"))
    await worker.start(address="http://127.0.0.1:1", secret="hush")
    await begun.wait()
    shown = await lives.show()
    assert (shown["worker"], shown["restoring"]) == ("restoring", True)
    free.set()
    assert (await lives.ended(behind))["result"]["metrics"]["step"] == 1
    shown = await lives.show()
    assert (shown["worker"], shown["restoring"]) == ("live", False)
    await worker.close()


@asynccontextmanager
async def that_never_answers(heard: list[object]) -> AsyncIterator[str]:
    """An address that takes connections and says nothing, as that of a host which is gone."""
    over = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(writer)
        await over.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        over.set()
        server.close()


async def test_no_answer_waits_for_a_worker_that_never_answers(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waited for it here would wait for an hour."""
    monkeypatch.setattr("session.worker.line._CONNECT_S", 3600.0)
    await lives.do(1, CLEAR)
    await lives.service.worker.close()
    heard: list[object] = []
    async with that_never_answers(heard) as address:
        async with lives.service.database.begin() as db:
            gone = WorkerRow(id="wrk_gone", address=address, secret="hush", heartbeat_at=now())
            WorkerRepository(db).add(gone)
        accepted = await lives.submit(2, CLEAR)
        made = await lives.client.post("/v1/sessions", json={"base_model": "tiny", "name": "s2"})
        assert made.status_code == 201
        assert (await lives.show())["worker"] == "away"
        assert (await lives.client.get("/v1/sessions")).status_code == 200
        found = (await lives.client.get(f"/v1/operations/{accepted}")).json()
        assert found["status"] == "pending"
        assert (await lives.client.post("/v1/sessions/s1/heartbeat")).status_code == 200
        assert (await lives.client.post("/v1/sessions/s1/stop")).json()["status"] == "stopping"
        await until(lambda: bool(heard))
        assert len(heard) == 1, "the one that all hints share"


def test_a_worker_that_is_killed_is_away_then_back_and_nothing_is_lost(
    service: Service, training: modelyard.TrainingClient
) -> None:
    path = f"/v1/sessions/{training.session_id}"
    training.forward_backward(batch(1)).result()
    assert get(service, path)["worker"] == "live"
    service.kill_worker()
    eventually(lambda: get(service, path)["worker"] == "away")
    form = {"number": 2, "token": "t", "body": {"type": "optim_step"}}
    headers = {"Authorization": f"Bearer {service.api_key}"}
    url = f"{service.url}{path}/operations"
    answer = httpx.post(url, json=form, headers=headers, timeout=60, trust_env=False)
    assert (answer.status_code, answer.json()["status"]) == (202, "pending")
    eventually(lambda: get(service, path)["worker"] == "live")
    operation = f"/v1/operations/{answer.json()['id']}"
    eventually(lambda: get(service, operation)["status"] == "completed")
    assert get(service, operation)["result"]["metrics"]["step"] == 1
