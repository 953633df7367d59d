"""Sessions that nobody stops end by themselves, say why, and leave what was promised."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import select, update

from registry.access.actor import Actor, Role
from registry.kit.clock import now
from session import wire
from session.endings.keeper import SessionKeeper
from session.lifecycle import service as lifecycle
from session.lifecycle.model import SessionMetric, TrainingSession
from session.operations.model import Operation
from session.operations.service import NewOperation, accept, packed_body
from session.sampling.model import SamplerWeights
from session.worker.context import Context
from session.worker.process import Worker
from support.engines import FakeEngine
from support.hosted import hosted
from support.lives import CLEAR, DATA, FORWARD_BACKWARD, LIFETIMES, LONG, STEP, Lives
from support.waiting import until

IDLE = "nothing was asked of it for 4 hours"
OLD = "it is 30 days old, the maximum"
MANY = {**FORWARD_BACKWARD, "data": DATA * 2000}  # so large that its body lies in the store
SAMPLER = {"type": "save", "kind": "sampler"}


@pytest_asyncio.fixture
async def lives(empty_url: str, tiny: Path, tmp_path: Path) -> AsyncIterator[Lives]:
    async with (
        hosted(tmp_path / "home", model=tiny, database_url=empty_url) as service,
        service.client() as client,
    ):
        found = Lives(service, client)
        await found.start()
        yield found


def sampling(**source: str) -> dict[str, Any]:
    prompt = {"dtype": "int64", "data": [5, 6]}
    return {"token": "t", "prompt": prompt, "max_tokens": 2, **source}


async def hold_engine(lives: Lives) -> asyncio.Event:
    """The engine computes a forward_backward until this is set; it has begun."""
    begun, free = asyncio.Event(), asyncio.Event()
    compute = lives.service.engine.forward_backward

    async def held(*given: Any, **named: Any) -> Any:
        begun.set()
        await free.wait()
        return await compute(*given, **named)

    lives.service.engine.forward_backward = held  # type: ignore[method-assign]
    await lives.submit((await lives.show())["last_number"] + 1, FORWARD_BACKWARD)
    await begun.wait()
    return free


# Idle.


async def test_an_idle_session_expires_says_why_and_lets_go_of_everything(lives: Lives) -> None:
    await lives.do(1, {"type": "save", "kind": "state"})
    await lives.start("s2", from_version="g1@1")
    done = await lives.do(1, FORWARD_BACKWARD, name="s2")
    holds = (await lives.client.get("/v1/groups/g1/versions/1/holds")).json()["data"]
    assert [each["kind"] for each in holds] == ["session"]
    await lives.age(timedelta(hours=4))
    assert (await lives.keep()).ended == 2

    shown = await lives.show("s2")
    assert (shown["status"], shown["error"]) == ("expired", IDLE)
    assert (shown["worker"], shown["expires_at"]) == (None, None)
    assert shown["ended_at"] is not None
    await until(lambda: lives.service.engine.models == {})
    assert (await lives.client.get("/v1/groups/g1/versions/1/holds")).json()["data"] == []
    result = (await lives.client.get(f"/v1/operations/{done['id']}")).json()
    assert result == done
    assert await lives.names("expired") == ["s2", "s1"]


async def test_every_wire_says_why_an_expired_session_takes_nothing(lives: Lives) -> None:
    await lives.age()
    await lives.keep()
    said = f"session 's1' is expired: {IDLE}"
    chat = {"model": "s1", "messages": [{"role": "user", "content": "hello"}]}
    answers = [
        await lives.post(1, CLEAR),
        await lives.client.post("/v1/samples", json=sampling(session="s1")),
        await lives.client.post("/v1/sessions/s1/heartbeat"),
        await lives.client.post("/openai/v1/chat/completions", json=chat),
        await lives.client.post("/openai/v1/completions", json={"model": "s1", "prompt": "hi"}),
    ]
    assert [each.status_code for each in answers] == [409] * 5
    details = [each.json().get("detail") or each.json()["error"]["message"] for each in answers]
    assert details == [said] * 5
    models = (await lives.client.get("/openai/v1/models")).json()["data"]
    assert [each["id"] for each in models] == []
    assert (await lives.client.post("/v1/sessions/s1/stop")).json()["status"] == "expired"


async def beat(lives: Lives) -> None:
    answer = await lives.client.post("/v1/sessions/s1/heartbeat")
    assert (answer.status_code, answer.json()["status"]) == (200, "running")


async def operate(lives: Lives) -> None:
    await lives.do(2, CLEAR)


async def log(lives: Lives) -> None:
    await lives.client.post("/v1/sessions/s1/metrics", json={"step": 0, "metrics": {"a": 1.0}})


async def sample(lives: Lives) -> None:
    answer = await lives.client.post("/v1/samples", json=sampling(session="s1"))
    assert answer.status_code == 200, answer.text


async def sample_weights(lives: Lives) -> None:
    async with lives.service.database.read() as db:
        weights = (await db.scalars(select(SamplerWeights.id))).one()
    answer = await lives.client.post("/v1/samples", json=sampling(weights=weights))
    assert answer.status_code == 200, answer.text


async def complete(lives: Lives) -> None:
    wanted = {"model": "s1", "prompt": "hi", "max_tokens": 2}
    answer = await lives.client.post("/openai/v1/completions", json=wanted)
    assert answer.status_code == 200, answer.text


async def complete_streamed(lives: Lives) -> None:
    wanted = {"model": "s1", "prompt": "hi", "max_tokens": 2, "stream": True}
    answer = await lives.client.post("/openai/v1/completions", json=wanted)
    assert "[DONE]" in answer.text


@pytest.mark.parametrize(
    "act", [beat, operate, log, sample, sample_weights, complete, complete_streamed]
)
async def test_whatever_is_asked_of_it_keeps_it(
    lives: Lives, act: Callable[[Lives], Awaitable[None]]
) -> None:
    await lives.do(1, SAMPLER)
    await lives.age(timedelta(hours=5))
    await act(lives)
    assert (await lives.keep()).ended == 0
    assert (await lives.show())["status"] == "running"
    await lives.age(timedelta(hours=5))
    assert (await lives.keep()).ended == 1


async def test_looking_at_it_does_not_keep_it(lives: Lives) -> None:
    await lives.age(timedelta(hours=5))
    await lives.show()
    await lives.client.get("/v1/sessions")
    assert (await lives.keep()).ended == 1


async def test_a_session_at_work_is_not_idle_nor_is_one_with_work_to_do(lives: Lives) -> None:
    free = await hold_engine(lives)
    behind = await lives.submit(2, STEP)
    await lives.age(timedelta(hours=5))
    assert (await lives.keep()).ended == 0
    free.set()
    assert (await lives.ended(behind))["status"] == "completed"
    await lives.age(timedelta(hours=5))
    assert (await lives.keep()).ended == 1


async def test_a_save_that_is_being_written_is_work(lives: Lives) -> None:
    free = lives.hold_saves()
    saving = await lives.submit(1, SAMPLER)

    async def is_written() -> bool:
        found = (await lives.client.get(f"/v1/operations/{saving}")).json()
        return bool(found["status"] == "running")

    await until(is_written)
    await lives.age(timedelta(hours=5))
    assert (await lives.keep()).ended == 0
    free.set()
    assert (await lives.ended(saving))["status"] == "completed"


async def test_only_time_in_which_the_service_was_there_counts(lives: Lives) -> None:
    await lives.age()
    assert (await lives.keep(watched=timedelta(hours=3))).ended == 0
    lifetimes, since = LIFETIMES, now() - timedelta(days=1)
    keeper = SessionKeeper(lives.service.database, lives.service.store, lifetimes, since=since)
    assert (await keeper.round(at=now())).ended == 0, "it slept since then"
    assert (await lives.keep()).ended == 1


async def test_an_operation_that_is_being_accepted_is_never_lost_to_an_expiry(
    lives: Lives,
) -> None:
    """The keeper has found the session idle, and finds its row locked."""
    await lives.age()
    async with lives.service.database.begin() as db:
        (row,) = await db.scalars(select(TrainingSession))
        actor = Actor(row.account_id, Role.member)
        session = await lifecycle.require_session(db, actor, "s1", lock=True)
        stored = packed_body(wire.ClearGradient())
        new = NewOperation(1, "t1", "clear_gradient", stored)
        accepted = await accept(db, session, new)
        keeping = asyncio.create_task(lives.keep())
        await asyncio.sleep(0.2)
        assert not keeping.done()
    assert (await keeping).ended == 0
    assert (await lives.ended(accepted.id))["status"] == "completed"
    assert (await lives.show())["status"] == "running"


async def test_it_expires_without_a_worker_and_no_later_one_takes_it(
    lives: Lives, tmp_path: Path
) -> None:
    await lives.service.worker.close()
    await lives.age()
    assert (await lives.keep()).ended == 1
    engine = FakeEngine()
    context = Context(
        "wrk_2", lives.service.database, lives.service.store, engine, tmp_path / "scratch"
    )
    worker = Worker(context)
    await worker.start(address="http://127.0.0.1:1", secret="hush")
    await lives.start("s2")
    assert len(engine.models) == 1
    await worker.close()


# Age.


async def test_at_its_maximum_age_a_session_ends_in_the_middle_of_its_work(lives: Lives) -> None:
    free = await hold_engine(lives)
    behind = await lives.submit(2, STEP)
    await lives.age(timedelta(days=31))
    await lives.client.post("/v1/sessions/s1/heartbeat")
    assert (await lives.keep(watched=timedelta(0))).ended == 1
    shown = await lives.show()
    assert (shown["status"], shown["error"]) == ("expired", OLD)
    assert (await lives.ended(behind))["error"]["message"] == f"the session has expired: {OLD}"

    free.set()
    await until(lambda: lives.service.engine.models == {})
    async with lives.service.database.read() as db:
        states = (await db.scalars(select(Operation.status).order_by(Operation.number))).all()
    assert states == ["completed", "skipped", "skipped"]
    assert (await lives.client.get("/v1/usage/totals")).json()["tokens"]["train"] == 0
    await lives.start("s2")
    assert (await lives.do(1, FORWARD_BACKWARD, name="s2"))["status"] == "completed"


async def test_a_save_in_flight_publishes_nothing_for_a_session_that_has_expired(
    lives: Lives,
) -> None:
    free = lives.hold_saves()
    saving = await lives.submit(1, {"type": "save", "kind": "state"})

    async def is_begun() -> bool:
        return bool(
            (await lives.client.get(f"/v1/operations/{saving}")).json()["status"] != "pending"
        )

    await until(is_begun)
    await lives.age(timedelta(days=31))
    assert (await lives.keep()).ended == 1
    free.set()
    assert (await lives.ended(saving))["status"] == "skipped"
    await until(lambda: lives.service.engine.models == {})
    assert (await lives.client.get("/v1/groups/g1/versions")).json()["data"] == []


# Retention.


async def test_results_are_kept_for_so_long_and_then_their_rows_still_know_a_retry(
    lives: Lives,
) -> None:
    done = [await lives.do(1, MANY), await lives.do(2, STEP)]
    failed = await lives.do(3, STEP)
    await lives.client.post("/v1/sessions/s1/stop")
    await lives.client.get("/v1/sessions/s1?wait=20")
    await lives.age(timedelta(days=6))
    assert (await lives.keep()).pruned == 0
    found = [(await lives.client.get(f"/v1/operations/{each['id']}")).json() for each in done]
    assert found == done

    await lives.age(timedelta(days=1))
    assert (await lives.keep()).pruned == 1
    assert (await lives.keep()).pruned == 0
    pruned = (await lives.client.get(f"/v1/operations/{done[0]['id']}")).json()
    assert (pruned["status"], pruned["result"], pruned["error"]["kind"]) == (
        *("completed", None),
        "not_found",
    )
    assert "not kept any more" in pruned["error"]["message"]
    assert (await lives.client.get(f"/v1/operations/{failed['id']}")).json() == failed
    async with lives.service.database.read() as db:
        rows = (await db.scalars(select(Operation))).all()
    assert {(row.body, row.body_key, row.result) for row in rows} == {(None, None, None)}
    assert await lives.service.store.keys("") == []
    again = await lives.post(2, STEP)
    assert (again.status_code, again.json()["id"]) == (202, done[1]["id"])
    assert (await lives.post(2, STEP, token="other")).json()["id"] == done[1]["id"]
    other = await lives.post(2, CLEAR, token="other")
    assert (other.status_code, "number 2" in other.json()["detail"]) == (409, True)


async def test_a_long_log_is_pruned_in_pieces(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("session.endings.service._AT_ONCE", 2)
    for number in range(1, 6):
        await lives.do(number, CLEAR)
    await lives.client.post("/v1/sessions/s1/stop")
    await lives.client.get("/v1/sessions/s1?wait=20")
    await lives.age(timedelta(days=7))
    assert (await lives.keep()).pruned == 1
    async with lives.service.database.read() as db:
        kept = await db.scalars(select(Operation.id).where(Operation.result.is_not(None)))
        assert kept.all() == []


# Delete.


async def test_only_what_has_ended_is_deleted(lives: Lives) -> None:
    refused = await lives.client.delete("/v1/sessions/s1")
    said = "session 's1' is running; stop it first"
    assert (refused.status_code, refused.json()["detail"]) == (409, said)
    await lives.age()
    await lives.keep()
    assert (await lives.client.delete("/v1/sessions/s1")).status_code == 204
    assert (await lives.client.delete("/v1/sessions/s1")).status_code == 404


async def test_deleting_removes_the_log_and_keeps_versions_usage_and_lineage(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("session.endings.service._AT_ONCE", 2)
    first = await lives.do(1, MANY)
    for number, body in ((2, STEP), (3, {"type": "save", "kind": "state"}), (4, SAMPLER)):
        await lives.do(number, body)
    await lives.do(5, {"type": "save", "kind": "adapter"})
    session = (await lives.show())["id"]
    used = (await lives.client.get("/v1/usage/totals")).json()
    await lives.client.post("/v1/sessions/s1/stop")
    await lives.client.get("/v1/sessions/s1?wait=20")
    assert (await lives.client.delete(f"/v1/sessions/{session}")).status_code == 204

    for path in (f"sessions/{session}", "sessions/s1", f"operations/{first['id']}"):
        assert (await lives.client.get(f"/v1/{path}")).status_code == 404
    assert (await lives.post(1, MANY)).status_code == 404
    async with lives.service.database.read() as db:
        for model in (TrainingSession, Operation, SessionMetric, SamplerWeights):
            assert (await db.scalars(select(model))).all() == []
    assert (await lives.client.get("/v1/usage/totals")).json() == used
    version = (await lives.client.get("/v1/groups/g1/versions/2")).json()
    assert (version["parent"], version["session"]) == ("g1@1", session)
    lineage = (await lives.client.get("/v1/groups/g1/versions/2/lineage")).json()
    assert [node["ref"] for node in lineage["nodes"]] == ["g1@1", "g1@2"]
    assert not [key for key in await lives.service.store.keys("") if "/sessions/" in key]
    assert (await lives.start("s1"))["status"] == "running"


async def test_a_session_that_is_deleted_under_its_worker_leaves_the_engine(
    lives: Lives,
) -> None:
    free = await hold_engine(lives)
    await lives.age(timedelta(days=31))
    await lives.keep()
    assert (await lives.client.delete("/v1/sessions/s1")).status_code == 204
    free.set()
    await until(lambda: lives.service.engine.models == {})
    await lives.start("s2")
    assert (await lives.do(1, CLEAR, name="s2"))["status"] == "completed"


async def test_a_session_that_stops_while_it_is_to_expire_is_one_of_both(lives: Lives) -> None:
    """Nobody drains it, as no worker lives, so its age ends it."""
    await lives.service.worker.close()
    behind = await lives.submit(1, CLEAR)
    await lives.client.post("/v1/sessions/s1/stop")
    await lives.age(timedelta(days=1))
    assert (await lives.keep()).ended == 0
    assert (await lives.show())["status"] == "stopping"
    async with lives.service.database.begin() as db:
        await db.execute(update(TrainingSession).values(created_at=now() - LONG))
    assert (await lives.keep()).ended == 1
    assert (await lives.show())["status"] == "expired"
    assert (await lives.ended(behind))["status"] == "skipped"
