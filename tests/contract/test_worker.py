"""A worker and the log: what it finishes when it stops, and what a later one makes of the rest."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from registry.artifacts.errors import StoreRefused, StoreUnavailable
from registry.artifacts.local import LocalBlobStore
from session.engine.port import AdamParams, EngineError, StepResult
from session.worker.context import Context
from session.worker.process import Worker
from support.engines import FakeEngine
from support.hosted import Hosted, hosted
from support.tiny import tiny_model

TOKENS = {"dtype": "int64", "data": [5, 6, 7]}
DATA = [{"tokens": TOKENS, "inputs": {"target_tokens": TOKENS}}]
FORWARD_BACKWARD = {"type": "forward_backward", "data": DATA}
STEP = {"type": "optim_step"}
SAVE = {"type": "save", "kind": "state"}


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Hosted]:
    async with hosted(tmp_path / "home", model=tiny_model(tmp_path / "tiny")) as service:
        yield service


@pytest.fixture
async def client(service: Hosted) -> AsyncIterator[httpx.AsyncClient]:
    """It has the running session `s1`."""
    async with service.client() as client:
        await client.post("/v1/sessions", json={"base_model": "tiny", "name": "s1", "group": "g1"})
        await client.get("/v1/sessions/s1?wait=20")
        yield client


async def submit(client: httpx.AsyncClient, number: int, body: Any) -> str:
    form = {"number": number, "token": f"t{number}", "body": body}
    answer = await client.post("/v1/sessions/s1/operations", json=form)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def ended(client: httpx.AsyncClient, operation: str) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get(f"/v1/operations/{operation}?wait=20")).json()
    assert found["status"] in ("completed", "failed", "skipped"), found
    return found


async def do(client: httpx.AsyncClient, number: int, body: Any) -> dict[str, Any]:
    return await ended(client, await submit(client, number, body))


async def succeed(service: Hosted, tmp_path: Path) -> tuple[Worker, FakeEngine]:
    """Another worker, with an empty engine, takes over."""
    await service.worker.close()
    engine = FakeEngine()
    worker = Worker(Context("wrk_2", service.database, service.store, engine, tmp_path / "scratch"))
    await worker.start(address="http://127.0.0.1:1", secret="hush")
    return worker, engine


async def test_a_worker_that_stops_finishes_the_saves_that_it_began(
    service: Hosted, client: httpx.AsyncClient
) -> None:
    await do(client, 1, FORWARD_BACKWARD)
    await do(client, 2, STEP)
    saves = [await submit(client, number, SAVE) for number in (3, 4, 5)]
    await do(client, 6, {"type": "forward", "data": DATA})
    await service.worker.close()
    results = [await ended(client, save) for save in saves]
    assert [each["result"]["version"] for each in results] == ["g1@1", "g1@2", "g1@3"]


async def test_a_later_worker_replays_what_was_and_goes_on(
    service: Hosted, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    for number, body in enumerate([FORWARD_BACKWARD, STEP, SAVE, FORWARD_BACKWARD], 1):
        await do(client, number, body)
    used = (await client.get("/v1/usage/totals")).json()["tokens"]["train"]
    worker, engine = await succeed(service, tmp_path)
    assert (await do(client, 5, STEP))["result"]["metrics"]["step"] == 2
    assert [model.step for model in engine.models.values()] == [2]
    assert (await client.get("/v1/usage/totals")).json()["tokens"]["train"] == used
    assert len((await client.get("/v1/groups/g1/versions")).json()["data"]) == 1
    await worker.close()


async def test_a_poisoned_gradient_is_poisoned_again_by_a_replay(
    service: Hosted, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    await do(client, 1, FORWARD_BACKWARD)
    assert (await do(client, 2, {"type": "forward_backward", "data": []}))["status"] == "failed"
    worker, _ = await succeed(service, tmp_path)
    assert "since the last step failed" in (await do(client, 3, STEP))["error"]["message"]
    await do(client, 4, FORWARD_BACKWARD)
    assert (await do(client, 5, STEP))["result"]["metrics"]["step"] == 1
    await worker.close()


async def test_a_batch_whose_body_is_lost_poisons_the_step(
    service: Hosted, client: httpx.AsyncClient
) -> None:
    many = {**FORWARD_BACKWARD, "data": DATA * 2000}
    parked = await submit(client, 2, many)
    (lost,) = [key for key in await service.store.keys("") if "/bodies/" in key]
    await service.store.delete(lost)
    await do(client, 1, FORWARD_BACKWARD)
    assert (await ended(client, parked))["status"] == "failed"
    assert "since the last step failed" in (await do(client, 3, STEP))["error"]["message"]


class Away(LocalBlobStore):
    """An object store that answers only once it has been asked a few times."""

    def __init__(self, root: Path, *problems: Exception) -> None:
        super().__init__(root)
        self.problems = list(problems)

    async def read(self, key: str) -> bytes:
        if self.problems:
            raise self.problems.pop(0)
        return await super().read(key)


async def test_a_replay_waits_for_a_store_that_is_away(
    service: Hosted, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    await do(client, 1, {**FORWARD_BACKWARD, "data": DATA * 2000})
    await service.worker.close()
    away = Away(
        tmp_path / "home" / "objects",
        StoreUnavailable("it restarts"),
        StoreRefused("InvalidAccessKeyId", "its keys are not there yet"),
    )
    worker = Worker(Context("wrk_2", service.database, away, FakeEngine(), tmp_path / "scratch"))
    await worker.start(address="http://127.0.0.1:1", secret="hush")
    assert (await do(client, 2, STEP))["status"] == "completed"
    assert away.problems == []
    await worker.close()


async def test_a_replay_that_comes_out_otherwise_ends_the_session(
    service: Hosted, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    """Rather than go on with weights that nobody has seen."""

    async def exhausted(model_id: str, params: AdamParams) -> StepResult:
        raise EngineError("out of memory")

    await do(client, 1, FORWARD_BACKWARD)
    service.engine.optim_step = exhausted  # type: ignore[method-assign]  # a device that is full
    assert (await do(client, 2, STEP))["status"] == "failed"
    worker, _ = await succeed(service, tmp_path)
    late = await submit(client, 3, STEP)
    assert (await ended(client, late))["status"] == "skipped"
    shown = (await client.get("/v1/sessions/s1")).json()
    assert shown["status"] == "failed"
    assert shown["error"] == "operation 2 failed once and completes now"
    await worker.close()


async def test_a_changed_base_is_refused_by_name(
    service: Hosted, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    """What the engine holds was compared: it goes on. What is read anew is refused."""
    change(tmp_path / "tiny/model.safetensors")
    refused = "base model 'tiny' is no longer what was registered: model.safetensors"
    merged = await do(client, 1, {"type": "save", "kind": "merged"})
    assert merged["error"] == {"kind": "unavailable", "message": refused}
    assert (await do(client, 2, FORWARD_BACKWARD))["status"] == "completed"
    worker, _ = await succeed(service, tmp_path)
    await client.post("/v1/sessions", json={"base_model": "tiny", "name": "s2"})
    shown = (await client.get("/v1/sessions/s2?wait=20")).json()
    assert (shown["status"], shown["error"]) == ("failed", refused)
    await worker.close()


async def test_a_missing_base_is_named_with_its_path(
    service: Hosted, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    (tmp_path / "tiny").rename(tmp_path / "aside")
    merged = await do(client, 1, {"type": "save", "kind": "merged"})
    missing = f"base model 'tiny' cannot be read: {tmp_path / 'tiny'} is missing"
    assert merged["error"] == {"kind": "unavailable", "message": missing}


def change(path: Path) -> None:
    """The same size, other bytes."""
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")


async def test_a_session_that_could_not_begin_leaves_nothing_in_the_engine(
    service: Hosted, client: httpx.AsyncClient
) -> None:
    await do(client, 1, SAVE)
    (config,) = [key for key in await service.store.keys("") if key.endswith("adapter_config.json")]
    await service.store.put_bytes(config, b"{}")
    await client.post("/v1/sessions", json={"from_version": "g1@1", "name": "s2"})
    shown = (await client.get("/v1/sessions/s2?wait=20")).json()
    assert (shown["status"], "adapter_config.json" in shown["error"]) == ("failed", True)
    assert len(service.engine.models) == 1
