"""A worker and the log: what it finishes when it stops, and what a later one makes of the rest."""

import asyncio
import errno
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors import SafetensorError
from sqlalchemy import select, update
from structlog.testing import capture_logs

from registry.artifacts.errors import StoreRefused, StoreUnavailable
from registry.artifacts.local import LocalBlobStore
from registry.kit import migrate
from registry.kit.clock import now
from registry.kit.db import Database
from registry.packages.model import PackageWrite
from registry.settings import Settings
from session import wire
from session.cli.installation import migrations
from session.cli.root import main
from session.engine.port import AdamParams, EngineError, StepResult
from session.lifecycle.model import TrainingSession
from session.operations import service as service_of_operations
from session.operations.model import Operation
from session.operations.service import NewOperation, accept, packed_body
from session.worker import runner
from session.worker.context import Context, failure
from session.worker.line import Offer, Place
from session.worker.process import Worker
from support.engines import FakeEngine
from support.hosted import Hosted
from support.waiting import until as eventually

TOKENS = {"dtype": "int64", "data": [5, 6, 7]}
DATA = [{"tokens": TOKENS, "inputs": {"target_tokens": TOKENS}}]
FORWARD_BACKWARD = {"type": "forward_backward", "data": DATA}
STEP = {"type": "optim_step"}
SAVE = {"type": "save", "kind": "state"}
MANY = {**FORWARD_BACKWARD, "data": DATA * 2000}  # so large that its body lies in the store


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


async def test_what_was_measured_goes_with_the_gradient(
    service: Hosted, client: httpx.AsyncClient
) -> None:
    """A refused step keeps both, a poisoned step and a load clear both."""
    await do(client, 1, SAVE)
    await do(client, 2, FORWARD_BACKWARD)
    assert (await do(client, 3, {**STEP, "beta1": 2.0}))["status"] == "failed"
    stepped = (await do(client, 4, STEP))["result"]["metrics"]
    assert (stepped["loss"], stepped["tokens"], stepped["loss_per_token"]) == (3.0, 3.0, 1.0)

    await do(client, 5, FORWARD_BACKWARD)
    await do(client, 6, {**FORWARD_BACKWARD, "data": []})
    assert (await do(client, 7, STEP))["status"] == "failed"
    await do(client, 8, FORWARD_BACKWARD)
    assert (await do(client, 9, STEP))["result"]["metrics"]["tokens"] == 3.0

    await do(client, 10, FORWARD_BACKWARD)
    await do(client, 11, {"type": "load", "source": "g1@1"})
    await do(client, 12, FORWARD_BACKWARD)
    assert (await do(client, 13, STEP))["result"]["metrics"]["tokens"] == 3.0


async def test_a_batch_whose_body_is_lost_poisons_the_step(
    service: Hosted, client: httpx.AsyncClient
) -> None:
    parked = await submit(client, 2, MANY)
    (lost,) = [key for key in await service.store.keys("") if "/bodies/" in key]
    await service.store.delete(lost)
    await do(client, 1, FORWARD_BACKWARD)
    assert (await ended(client, parked))["status"] == "failed"
    assert "since the last step failed" in (await do(client, 3, STEP))["error"]["message"]


async def held(client: httpx.AsyncClient, number: int, body: Any) -> dict[str, Any]:
    """Submitted, and answered when it has ended: the worker gets it with the question."""
    form = {"number": number, "token": f"t{number}", "body": body}
    answer = await client.post("/v1/sessions/s1/operations?wait=20", json=form)
    found: dict[str, Any] = answer.json()
    assert found["status"] in ("completed", "failed", "skipped"), found
    return found


async def test_what_is_offered_early_runs_at_its_place(
    service: Hosted, client: httpx.AsyncClient
) -> None:
    bodies = {3: STEP, 2: FORWARD_BACKWARD, 1: MANY}
    waiting = []
    for number, body in bodies.items():
        waiting.append(asyncio.create_task(held(client, number, body)))
        await eventually(partial(is_stored, service, number))
    done = await asyncio.gather(*waiting)
    assert [each["status"] for each in done] == ["completed"] * 3
    assert done[0]["result"]["metrics"]["tokens"] == 3 * 2000 + 3


async def is_stored(service: Hosted, number: int) -> bool:
    async with service.database.ask() as db:
        found = await db.scalars(select(Operation.id).where(Operation.number == number))
        return found.one_or_none() is not None


async def test_what_nobody_told_of_runs_before_what_is_offered(
    service: Hosted, client: httpx.AsyncClient
) -> None:
    async with service.database.begin() as db:
        session = (await db.scalars(select(TrainingSession))).one()
        new = NewOperation(1, "t", "clear_gradient", packed_body(wire.ClearGradient()))
        untold = await accept(db, session, new)
    assert (await held(client, 2, FORWARD_BACKWARD))["status"] == "completed"
    assert (await ended(client, untold.id))["status"] == "completed"
    assert (await held(client, 3, STEP))["result"]["metrics"]["tokens"] == 3.0


async def test_what_has_run_is_not_run_again_for_an_offer(
    service: Hosted, client: httpx.AsyncClient
) -> None:
    done = await held(client, 1, FORWARD_BACKWARD)
    place = Place(done["session"], done["id"], 1)
    async with service.database.read() as db:
        offer = Offer.of(await db.get_one(Operation, done["id"]))
    again = await service.worker.outcome(place, 20, offer=offer)
    assert again is not None
    assert (again.id, again.status) == (done["id"], "completed")
    assert (await held(client, 2, STEP))["result"]["metrics"]["tokens"] == 3.0
    assert (await client.get("/v1/usage/totals")).json()["tokens"]["train"] == 3


async def test_the_next_one_runs_while_the_last_is_written_and_neither_is_lost(
    service: Hosted, client: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database takes no completion, the worker goes on by one, and stops then."""
    change, free = Context.change, asyncio.Event()

    async def slow(self: Context, work: Any, *, keyed: bool = False) -> Any:
        if keyed:
            await free.wait()
        return await change(self, work, keyed=keyed)

    monkeypatch.setattr(Context, "change", slow)
    waiting = [asyncio.create_task(held(client, 1, FORWARD_BACKWARD))]
    await eventually(partial(is_stored, service, 1))
    waiting.append(asyncio.create_task(held(client, 2, STEP)))
    waiting.append(asyncio.create_task(held(client, 3, FORWARD_BACKWARD)))
    await eventually(lambda: [model.step for model in service.engine.models.values()] == [1])
    for task in waiting:
        task.cancel()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in found)
    async with service.database.ask() as db:
        states = (await db.scalars(select(Operation.status).order_by(Operation.number))).all()
    assert set(states[1:]) <= {"pending", "running"}
    worker, engine = await succeed(service, tmp_path)
    free.set()
    done = [await do(client, number, body) for number, body in ((1, FORWARD_BACKWARD), (2, STEP))]
    assert [each["status"] for each in done] == ["completed", "completed"]
    assert (await do(client, 4, STEP))["result"]["metrics"]["step"] == 2
    assert [model.step for model in engine.models.values()] == [2]
    assert (await client.get("/v1/usage/totals")).json()["tokens"]["train"] == 6
    await worker.close()


async def test_what_is_offered_to_a_session_that_fails_to_begin_is_skipped(
    service: Hosted, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await do(client, 1, SAVE)
    (config,) = [key for key in await service.store.keys("") if key.endswith("_config.json")]
    await service.store.put_bytes(config, b"{}")
    free, make = asyncio.Event(), service.engine.create_model

    async def slow(*given: Any, **named: Any) -> None:
        await free.wait()
        await make(*given, **named)

    monkeypatch.setattr(service.engine, "create_model", slow)
    await client.post("/v1/sessions", json={"from_version": "g1@1", "name": "s2"})
    runners = service.worker._runners
    await eventually(lambda: len(runners) == 2)  # nothing is offered to a worker without it
    form = {"number": 1, "token": "t", "body": FORWARD_BACKWARD}
    asking = asyncio.create_task(client.post("/v1/sessions/s2/operations?wait=20", json=form))
    await eventually(lambda: any(each._offered for each in runners.values()))
    free.set()
    assert (await asking).json()["status"] == "skipped"
    assert (await client.get("/v1/sessions/s2")).json()["status"] == "failed"
    assert (await client.get("/v1/usage/totals")).json()["tokens"]["train"] == 0


async def test_an_end_that_cannot_be_written_is_no_failure_of_the_save_behind_it(
    service: Hosted, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = service_of_operations.complete

    async def fails(db: Any, operation: Operation, *given: Any, **named: Any) -> None:
        if operation.number == 1:
            raise RuntimeError("a fault of ours")
        await complete(db, operation, *given, **named)

    monkeypatch.setattr(service_of_operations, "complete", fails)
    behind = asyncio.create_task(held(client, 2, SAVE))
    await eventually(partial(is_stored, service, 2))
    first = await submit(client, 1, FORWARD_BACKWARD)
    assert (await ended(client, first))["status"] == "skipped"
    assert (await behind)["status"] == "skipped"
    assert (await client.get("/v1/sessions/s1")).json()["status"] == "failed"


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
    skipped = await ended(client, late)
    why = "the session failed: operation 2 failed once and completes now"
    assert (skipped["status"], skipped["error"]["message"]) == ("skipped", why)
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


@pytest.mark.parametrize("away", ["tiny", "home/objects"])
async def test_a_replay_waits_for_storage_that_is_away(
    service: Hosted,
    client: httpx.AsyncClient,
    tmp_path: Path,
    away: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "_STORAGE_PAUSE_S", 0.05)
    await do(client, 1, MANY)
    await do(client, 2, STEP)
    (tmp_path / away).rename(tmp_path / "aside")
    with capture_logs() as logs:
        worker, _ = await succeed(service, tmp_path)
        step = await submit(client, 3, FORWARD_BACKWARD)
        await eventually(lambda: any(each["event"] == "replay.waits" for each in logs))
        shown = (await client.get("/v1/sessions/s1")).json()
        assert (shown["status"], shown["restoring"]) == ("running", True)
        (tmp_path / "aside").rename(tmp_path / away)
        assert (await ended(client, step))["status"] == "completed"
    await worker.close()


async def test_a_creation_that_was_cut_short_waits_for_its_base(
    service: Hosted, client: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_STORAGE_PAUSE_S", 0.05)
    begun = asyncio.Event()

    async def endless(model_id: str, **_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    service.engine.create_model = endless  # type: ignore[method-assign]  # until it is cancelled
    await client.post("/v1/sessions", json={"base_model": "tiny", "name": "s2"})
    await begun.wait()
    (tmp_path / "tiny").rename(tmp_path / "aside")
    with capture_logs() as logs:
        worker, _ = await succeed(service, tmp_path)
        await eventually(lambda: sum(each["event"] == "replay.waits" for each in logs) > 2)
    (tmp_path / "aside").rename(tmp_path / "tiny")
    assert (await client.get("/v1/sessions/s2?wait=20")).json()["status"] == "running"
    await worker.close()


@pytest.mark.parametrize("damaged", ["base", "body"])
async def test_a_replay_waits_until_what_changed_is_repaired(
    service: Hosted,
    client: httpx.AsyncClient,
    tmp_path: Path,
    damaged: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "_STORAGE_PAUSE_S", 0.05)
    await do(client, 1, MANY)
    (body,) = [key for key in await service.store.keys("") if "/bodies/" in key]
    place = f"home/objects/{body}" if damaged == "body" else "tiny/model.safetensors"
    path = tmp_path / place
    good = path.read_bytes()
    change(path)
    with capture_logs() as logs:
        worker, _ = await succeed(service, tmp_path)
        await eventually(lambda: any(each["event"] == "replay.waits" for each in logs))
    reason = next(each["reason"] for each in logs if each["event"] == "replay.waits")
    assert path.name in reason
    path.write_bytes(good)
    assert (await do(client, 2, STEP))["result"]["metrics"]["step"] == 1
    await worker.close()


async def test_a_session_that_cannot_be_restored_can_be_stopped(
    service: Hosted, client: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_STORAGE_PAUSE_S", 0.05)
    monkeypatch.setattr(runner, "_PATIENCE_S", 0.0)
    (tmp_path / "tiny").rename(tmp_path / "aside")
    worker, _ = await succeed(service, tmp_path)
    late = await submit(client, 1, SAVE)
    await client.post("/v1/sessions/s1/stop")
    skipped = await ended(client, late)
    why = f"operation 0: base model 'tiny' cannot be read: {tmp_path / 'tiny'} is missing"
    assert skipped["status"] == "skipped"
    assert skipped["error"]["message"].endswith(f"it could not be restored: {why}")
    assert (await client.get("/v1/sessions/s1")).json()["status"] == "stopped"
    await worker.close()


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
    await eventually(lambda: len(service.engine.models) == 1)


async def test_a_save_that_fails_leaves_no_files(
    service: Hosted, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(db: object, actor: object, **_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("session.worker.saving.packages.register", full)
    saved = await do(client, 1, SAVE)
    assert saved["error"]["message"] == "storage: No space left on device"
    assert await service.store.keys("") == []


@pytest.mark.parametrize(
    ("what", "refused"),
    [
        ({"description": "x" * 2000}, "description: 2000 characters"),
        ({"metadata": {"": "x"}}, "metadata: key ''"),
        ({"metrics": {"x" * 200: 1.0}}, "metrics: key"),
        ({"group": "none"}, "no group named 'none'"),
    ],
)
async def test_a_save_that_cannot_be_published_is_refused_before_anything_is_written(
    service: Hosted,
    client: httpx.AsyncClient,
    what: dict[str, Any],
    refused: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(FakeEngine, "save")
    assert refused in (await do(client, 1, {**SAVE, **what}))["error"]["message"]


class Swept(LocalBlobStore):
    """While the first file goes up, somebody takes what is being written for left over."""

    def __init__(self, root: Path, database: Database) -> None:
        super().__init__(root)
        self._database = database
        self.swept: list[str] = []

    async def put_file(self, key: str, path: Path, **options: Any) -> None:
        await super().put_file(key, path, **options)
        if not self.swept:
            async with self._database.begin() as db:
                marked = update(PackageWrite).values(collected_at=now())
                self.swept += await db.scalars(marked.returning(PackageWrite.id))


async def test_a_save_that_was_taken_for_left_over_is_written_again(
    service: Hosted, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    await service.worker.close()
    store = Swept(tmp_path / "home" / "objects", service.database)
    context = Context("wrk_2", service.database, store, FakeEngine(), tmp_path / "scratch")
    worker = Worker(context)
    await worker.start(address="http://127.0.0.1:1", secret="hush")
    saves = [await submit(client, number, SAVE) for number in (1, 2)]
    first, second = [(await ended(client, save))["result"]["version"] for save in saves]
    assert (first, second) == ("g1@1", "g1@2")
    assert (await client.post("/v1/groups/g1/versions/1/verify")).json()["intact"]
    shown = (await client.get("/v1/groups/g1/versions/2")).json()
    assert shown["parent"] == "g1@1"
    assert store.swept
    await worker.close()


def test_a_disk_that_is_full_is_said_whoever_found_out() -> None:
    told = "Error while serializing: I/O error: No space left on device (os error 28)"
    why = failure(SafetensorError(told))
    assert (why.kind, why.message) == ("unavailable", "storage: No space left on device")
    assert failure(SafetensorError("header too large")).kind == "internal"


def test_a_worker_refuses_a_database_that_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MODELYARD_HOME", str(tmp_path))
    settings = Settings(home=tmp_path)
    asyncio.run(migrate.ensure(settings.database_url(), migrations()))
    with closing(sqlite3.connect(tmp_path / "modelyard.db")) as database, database:
        database.execute("UPDATE modelyard_schema SET version_num = 'later'")
    with pytest.raises(SystemExit, match="4"):
        main(("worker",))
    (line,) = capsys.readouterr().err.splitlines()
    assert "has the schema later, which this version of modelyard" in line


async def test_an_ended_session_leaves_no_bodies_and_no_sampler_weights(
    service: Hosted, client: httpx.AsyncClient
) -> None:
    await do(client, 1, MANY)
    await do(client, 2, {"type": "save", "kind": "sampler"})
    assert len(await service.store.keys("")) == 3
    await client.post("/v1/sessions/s1/stop")

    async def is_empty() -> bool:
        return await service.store.keys("") == []

    await eventually(is_empty)
