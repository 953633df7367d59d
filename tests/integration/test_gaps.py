"""A number that is missing blocks its session, which says so, and ends it in time."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

import modelyard
from session.engine.port import Datum, Loss, LossOutput
from support.engines import FakeEngine
from support.hosted import hosted
from support.lives import CLEAR, FORWARD_BACKWARD, STEP, Lives
from support.service import modelyard as command
from support.service import serving
from support.training import connect, eventually, get
from support.waiting import until

MISSING = "operation 2 is missing; those behind it waited 10 minutes"


@pytest_asyncio.fixture
async def lives(empty_url: str, tiny: Path, tmp_path: Path) -> AsyncIterator[Lives]:
    async with (
        hosted(tmp_path / "home", model=tiny, database_url=empty_url) as service,
        service.client() as client,
    ):
        found = Lives(service, client)
        await found.start()
        yield found


class HeldEngine:
    """Its next forward_backward waits for `free`."""

    def __init__(self, engine: FakeEngine) -> None:
        self.begun, self.free = asyncio.Event(), asyncio.Event()
        self._compute = engine.forward_backward
        engine.forward_backward = self._held  # type: ignore[method-assign]

    async def _held(
        self, model_id: str, data: Sequence[Datum], *, loss: Loss, config: Mapping[str, float]
    ) -> list[LossOutput]:
        self.begun.set()
        await self.free.wait()
        return await self._compute(model_id, data, loss=loss, config=config)


async def test_a_gap_blocks_names_the_number_and_is_over_when_that_comes(lives: Lives) -> None:
    parked = [await lives.submit(number, body) for number, body in ((4, STEP), (3, CLEAR))]
    await lives.do(1, FORWARD_BACKWARD)
    shown = await lives.show()
    assert (shown["status"], shown["missing_number"], shown["last_number"]) == ("blocked", 2, 4)
    assert (await lives.names("blocked"), await lives.names("running")) == (["s1"], [])
    found = [(await lives.client.get(f"/v1/operations/{each}")).json() for each in parked]
    assert [each["status"] for each in found] == ["pending", "pending"]

    assert (await lives.do(2, STEP))["result"]["metrics"]["step"] == 1
    assert (await lives.ended(parked[1]))["status"] == "completed"
    assert "no gradient" in (await lives.ended(parked[0]))["error"]["message"]
    shown = await lives.show()
    assert (shown["status"], shown["missing_number"]) == ("running", None)
    assert (await lives.names("blocked"), await lives.names("running")) == ([], ["s1"])


async def test_what_is_before_the_gap_still_runs_and_the_session_is_not_blocked_yet(
    lives: Lives,
) -> None:
    engine = HeldEngine(lives.service.engine)
    first = await lives.submit(1, FORWARD_BACKWARD)
    await lives.submit(3, STEP)
    await engine.begun.wait()
    assert (await lives.show())["status"] == "running"
    await lives.age()
    assert (await lives.keep()).ended == 0
    engine.free.set()
    await lives.ended(first)
    assert (await lives.show())["status"] == "blocked"


async def test_after_the_timeout_the_session_fails_and_what_was_parked_is_skipped(
    lives: Lives,
) -> None:
    await lives.do(1, FORWARD_BACKWARD)
    form = {"number": 3, "token": "t3", "body": FORWARD_BACKWARD}
    url = "/v1/sessions/s1/operations?wait=25"
    waiting = asyncio.create_task(lives.client.post(url, json=form))

    async def is_blocked() -> bool:
        return bool((await lives.show())["status"] == "blocked")

    await until(is_blocked)
    assert (await lives.keep()).ended == 0
    await lives.age()
    assert (await lives.keep(watched=timedelta(minutes=9))).ended == 0, "nobody could send it"
    assert (await lives.keep()).ended == 1

    for found in ((await waiting).json(), (await lives.post(3, FORWARD_BACKWARD)).json()):
        assert found["status"] == "skipped"
        assert found["error"] == {"kind": "conflict", "message": f"the session failed: {MISSING}"}
    shown = await lives.show()
    assert (shown["status"], shown["error"], shown["worker"]) == ("failed", MISSING, None)
    assert shown["missing_number"] is None
    late = await lives.post(2, STEP)
    assert (late.status_code, late.json()["detail"]) == (409, f"session 's1' is failed: {MISSING}")
    used = (await lives.client.get("/v1/usage/totals")).json()["tokens"]["train"]
    assert used == 3, "operation 1 alone"
    await until(lambda: lives.service.engine.models == {})


async def test_a_save_before_the_gap_is_finished_first(lives: Lives) -> None:
    written = lives.hold_saves()
    saving = await lives.submit(1, {"type": "save", "kind": "state"})
    await lives.submit(3, STEP)

    async def is_blocked() -> bool:
        return bool((await lives.show())["status"] == "blocked")

    await until(is_blocked)
    await lives.age()
    assert (await lives.keep()).ended == 0
    written.set()
    assert (await lives.ended(saving))["result"]["version"] == "g1@1"
    await lives.age()
    assert (await lives.keep()).ended == 1


async def test_stop_drains_what_was_accepted_before_the_gap(lives: Lives) -> None:
    engine = HeldEngine(lives.service.engine)
    bodies = ((1, FORWARD_BACKWARD), (2, STEP), (4, CLEAR))
    accepted = [await lives.submit(number, body) for number, body in bodies]
    await engine.begun.wait()
    stopped = await lives.client.post("/v1/sessions/s1/stop")
    assert stopped.json()["status"] == "stopping"
    assert (await lives.post(3, CLEAR)).status_code == 409
    engine.free.set()
    found = [await lives.ended(each) for each in accepted]
    assert [each["status"] for each in found] == ["completed", "completed", "skipped"]
    assert found[2]["error"]["message"] == "the session is stopped"
    assert (await lives.show())["status"] == "stopped"


async def test_without_a_worker_a_gap_ends_its_session_all_the_same(lives: Lives) -> None:
    await lives.do(1, CLEAR)
    await lives.service.worker.close()
    parked = await lives.submit(3, CLEAR)
    shown = await lives.show()
    assert (shown["status"], shown["worker"]) == ("blocked", "away")
    await lives.age()
    assert (await lives.keep()).ended == 1
    assert (await lives.ended(parked))["status"] == "skipped"


async def test_our_clients_future_says_which_number_is_missing(
    lives: Lives, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client has sent number 2, and never sends 1."""
    monkeypatch.setattr("session.client.lane._FIRST_WAIT_S", 0)
    await lives.submit(2, CLEAR)
    key = lives.service.headers["Authorization"].removeprefix("Bearer ")

    def ask() -> modelyard.APIFuture[None]:
        training = client.get_training_client("s1")
        return training.clear_gradient()

    with modelyard.ServiceClient(lives.service.url, key) as client:
        future = await asyncio.to_thread(ask)
        blocked = "is blocked: operation 1 is missing, and those behind it wait for it"
        await until(lambda: blocked in caplog.text)
        await lives.age()
        assert (await lives.keep()).ended == 1
        with pytest.raises(modelyard.OperationFailed, match="operation 1 is missing") as failed:
            await future
        assert failed.value.kind == "conflict"


async def test_an_invalid_operation_leaves_no_gap(lives: Lives) -> None:
    failed = await lives.do(1, {"type": "forward_backward", "data": []})
    assert (failed["status"], failed["error"]["kind"]) == ("failed", "invalid")
    assert (await lives.do(2, CLEAR))["status"] == "completed"
    assert (await lives.show())["status"] == "running"


def test_the_service_ends_it_by_itself(tiny: Path, tmp_path: Path) -> None:
    settings = {"MODELYARD_SESSIONS__GAP_TIMEOUT_S": "1"}
    with serving(tmp_path / "own", settings=settings) as service:
        assert command(service.home, "models", "add", "tiny", str(tiny)).returncode == 0
        with connect(service, "g") as client:
            name = client.create_lora_training_client("tiny", rank=4, name="s1").name
            url = f"{service.url}/v1/sessions/{name}/operations"
            headers = {"Authorization": f"Bearer {service.api_key}"}
            form = {"number": 2, "token": "t", "body": CLEAR}
            sent = httpx.post(url, json=form, headers=headers, timeout=60, trust_env=False)
            operation = f"/v1/operations/{sent.json()['id']}"
            eventually(lambda: get(service, operation)["status"] == "skipped")
            shown = get(service, "/v1/sessions/s1")
            missing = "operation 1 is missing; those behind it waited 1 second"
            assert (shown["status"], shown["error"]) == ("failed", missing)
