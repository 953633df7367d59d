"""Events reach a real receiver at least once, signed, whatever happens to it or to us."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, update

from registry.access.actor import Role
from registry.events import service as events
from registry.events.courier import Courier, Timing
from registry.events.model import Delivery, DeliveryStatus, Event
from registry.events.targets import Targets
from registry.kit.clock import now
from registry.kit.db import Base, Database
from support import courier
from support.courier import LOOPBACK, delivering
from support.database import fresh_database
from support.packages import a_version, an_actor
from support.receiver import Receiver, receiving
from support.registry_service import Service, is_problem, registry_service
from support.waiting import until


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    if request.param == "sqlite":
        async with fresh_database(tmp_path) as database:
            yield database
        return
    found: str = request.getfixturevalue("postgres_url")
    database = Database.connect(found.replace("postgresql://", "postgresql+psycopg://"))
    async with database.engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield database
    await database.close()


@pytest.fixture
async def service(database: Database) -> AsyncIterator[Service]:
    """It speaks as an admin, and allows private addresses."""
    async with registry_service(database, targets=LOOPBACK) as service:
        service.client.headers.update(await service.token(Role.admin))
        yield service


async def hook(service: Service, receiver: Receiver, **more: Any) -> dict[str, Any]:
    answer = await service.client.post("/v1/webhooks", json={"url": receiver.url, **more})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def happen(service: Service, *, times: int = 1) -> None:
    async with service.database.begin() as db:
        for _ in range(times):
            await a_version(db, service.alice)


async def sent(service: Service, webhook: dict[str, Any], query: str = "") -> list[dict[str, Any]]:
    answer = await service.client.get(f"/v1/webhooks/{webhook['id']}/deliveries{query}")
    found: list[dict[str, Any]] = answer.json()["data"]
    return found


async def hurry(database: Database, **values: Any) -> None:
    """What waits for its next attempt is due now."""
    async with database.begin() as db:
        waiting = update(Delivery).where(Delivery.status == DeliveryStatus.pending)
        await db.execute(waiting.values(next_at=now(), **values))


async def test_an_event_arrives_signed_as_the_standard_says(service: Service) -> None:
    with receiving() as receiver:
        made = await hook(service, receiver)
        await happen(service)
        async with delivering(service.database):
            await until(lambda: bool(receiver.got))
        (body,) = receiver.verified(made["secret"])
    (listed,) = (await service.client.get("/v1/events")).json()["data"]
    assert receiver.ids == [listed["id"]]
    assert body == {
        "type": "version.registered",
        "timestamp": listed["created_at"],
        "data": listed["data"],
    }
    assert (listed["number"], listed["data"]["ref"]) == (1, "demo@1")


async def test_a_failure_is_tried_again_under_the_same_id(service: Service) -> None:
    with receiving(500, 503) as receiver:
        made = await hook(service, receiver)
        await happen(service)
        async with delivering(service.database):
            for status in (500, 503, 204):
                await until(partial(settled, service, made, status))
                await hurry(service.database)
        assert len(set(receiver.ids)) == 1
        assert len(receiver.verified(made["secret"])) == 3
    (delivery,) = await sent(service, made)
    assert (delivery["status"], delivery["attempts"], delivery["last_status"]) == (
        *("delivered", 3, 204),
    )


async def settled(service: Service, webhook: dict[str, Any], status: int) -> bool:
    """Whether that is the last answer that was written down."""
    found = await sent(service, webhook)
    return [each["last_status"] for each in found] == [status]


async def test_an_attempt_whose_process_is_killed_is_made_again(service: Service) -> None:
    with receiving() as receiver:
        receiver.open.clear()
        made = await hook(service, receiver)
        await happen(service)
        url = service.database.engine.url.render_as_string(hide_password=False)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, courier.__file__, url), env=environment
        )
        await until(lambda: bool(receiver.got))
        process.kill()
        await process.wait()
        receiver.open.set()
        (delivery,) = await sent(service, made)
        assert (delivery["status"], delivery["attempts"]) == ("pending", 1)
        await hurry(service.database)
        async with delivering(service.database):
            await until(lambda: len(receiver.got) == 2)
        assert len(set(receiver.ids)) == 1
        assert len(receiver.verified(made["secret"])) == 2


async def test_two_couriers_never_make_the_same_attempt(service: Service) -> None:
    with receiving() as receiver:
        made = await hook(service, receiver)
        async with delivering(service.database), delivering(service.database):
            for _ in range(4):
                await happen(service, times=10)
            await until(lambda: all_delivered(service.database, 40))
        assert len(receiver.ids) == len(set(receiver.ids)) == 40
    assert {each["attempts"] for each in await sent(service, made)} == {1}
    listed = (await service.client.get("/v1/events?limit=200")).json()["data"]
    assert [event["number"] for event in listed] == list(range(1, 41))


async def test_a_courier_stops_also_while_an_attempt_ends(database: Database) -> None:
    """Many times, as both must come in one turn of the loop."""
    for turns in range(20):
        courier = Courier(database, LOOPBACK, timing=Timing(poll_s=60))
        pausing = asyncio.create_task(courier._pause())
        await asyncio.sleep(0.01)
        courier._free.set()
        for _ in range(turns % 4):
            await asyncio.sleep(0)
        if not pausing.done():
            pausing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pausing
        await courier.close()


async def all_delivered(database: Database, count: int) -> bool:
    async with database.read() as db:
        delivered = select(func.count()).where(Delivery.status == DeliveryStatus.delivered)
        return await db.scalar(delivered) == count


async def test_a_receiver_that_never_answers_holds_up_nobody_else(service: Service) -> None:
    with receiving() as slow, receiving() as quick:
        slow.open.clear()
        await hook(service, slow)
        await hook(service, quick)
        await happen(service, times=30)
        patient = Timing(poll_s=0.05, timeout_s=300)
        async with delivering(service.database, timing=patient):
            await until(lambda: len(quick.got) == 30)
            await until(lambda: len(slow.got) > 0)
            assert len(slow.got) <= 4


async def test_a_receiver_that_is_gone_is_not_told_again(service: Service) -> None:
    with receiving(410) as receiver:
        made = await hook(service, receiver)
        await happen(service)
        async with delivering(service.database):
            await until(lambda: has_status(service, made, "dead"))
            await happen(service)
            await until(lambda: published(service.database, 2))
        assert len(receiver.got) == 1
    found = (await service.client.get(f"/v1/webhooks/{made['id']}")).json()
    assert (found["enabled"], found["why_disabled"]) == (False, "its receiver answered 410 Gone")


async def has_status(service: Service, webhook: dict[str, Any], status: str) -> bool:
    return bool(await sent(service, webhook, f"?status={status}"))


async def published(database: Database, count: int) -> bool:
    async with database.read() as db:
        numbered = select(func.count()).where(Event.number.is_not(None))
        return await db.scalar(numbered) == count


async def test_what_was_given_up_is_listed_and_can_be_sent_again(service: Service) -> None:
    with receiving(503, 500) as receiver:
        made = await hook(service, receiver)
        await happen(service)
        async with delivering(service.database):
            await until(lambda: settled(service, made, 503))
            await hurry(service.database, attempts=9)
            await until(lambda: has_status(service, made, "dead"))
            (dead,) = await sent(service, made, "?status=dead")
            assert (dead["attempts"], dead["last_error"]) == (10, "answered 500")
            path = f"/v1/webhooks/{made['id']}/deliveries/{dead['id']}/redeliver"
            assert (await service.client.post(path)).status_code == 202
            await until(lambda: has_status(service, made, "delivered"))
        assert len(receiver.got) == 3
        assert len(set(receiver.ids)) == 1


async def test_a_redirect_is_not_followed(service: Service) -> None:
    with receiving(302) as receiver, receiving() as elsewhere:
        receiver.headers["Location"] = elsewhere.url
        made = await hook(service, receiver)
        await happen(service)
        async with delivering(service.database):
            await until(lambda: settled(service, made, 302))
        assert (len(receiver.got), len(elsewhere.got)) == (1, 0)


async def test_a_name_that_comes_to_lead_to_a_private_address_gets_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is public when the webhook is made, and is not when the event is sent."""
    with receiving() as receiver:
        port = int(receiver.url.rpartition(":")[2].partition("/")[0])
        addresses = ["1.1.1.1"]

        async def resolved(*_: Any, **__: Any) -> list[Any]:
            address = addresses.pop(0) if addresses else "127.0.0.1"
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
        async with registry_service(database) as service:
            service.client.headers.update(await service.token(Role.admin))
            receiver.url = f"https://rebinding.example:{port}/hook"
            made = await hook(service, receiver)
            await happen(service)
            async with delivering(database, Targets()):
                await until(lambda: refused(service, made))
        assert receiver.got == []


async def refused(service: Service, webhook: dict[str, Any]) -> bool:
    (delivery,) = await sent(service, webhook) or [{"last_error": None}]
    return "127.0.0.1, which is not a public address" in (delivery["last_error"] or "")


async def test_after_a_rotation_both_secrets_verify(service: Service) -> None:
    with receiving() as receiver:
        made = await hook(service, receiver)
        rotated = (await service.client.post(f"/v1/webhooks/{made['id']}/rotate")).json()
        await service.client.post(f"/v1/webhooks/{made['id']}/test")
        async with delivering(service.database):
            await until(lambda: bool(receiver.got))
        assert rotated["secret"] != made["secret"]
        for secret in (made["secret"], rotated["secret"]):
            assert [each["type"] for each in receiver.verified(secret)] == ["webhook.test"]


async def test_a_webhook_is_told_only_of_the_types_it_names(service: Service) -> None:
    with receiving() as receiver:
        await hook(service, receiver, types=["alias.moved"])
        await happen(service)
        alias = "/v1/groups/demo/aliases/prod"
        await service.client.put(alias, json={"version": 1}, headers={"If-None-Match": "*"})
        async with delivering(service.database):
            await until(lambda: published(service.database, 2))
            await until(lambda: all_delivered(service.database, 1))
        assert [b'"alias.moved"' in body for _, body in receiver.got] == [True]


async def test_only_an_admin_of_the_account_sees_its_webhooks(service: Service) -> None:
    with receiving() as receiver:
        made = await hook(service, receiver)
    one = f"/v1/webhooks/{made['id']}"
    assert "secret" not in (await service.client.get(one)).json()
    member = await service.token(Role.member)
    is_problem(await service.client.get(one, headers=member), 403, "forbidden")
    async with service.database.begin() as db:
        bob = await an_actor(db, "bob")
    stranger = await service.token(Role.admin, account=bob.account_id)
    is_problem(await service.client.delete(one, headers=stranger), 404, "not_found")
    assert (await service.client.delete(one)).status_code == 204
    is_problem(await service.client.get(one), 404, "not_found")


async def test_what_is_old_is_forgotten_with_its_deliveries(service: Service) -> None:
    with receiving() as receiver:
        await hook(service, receiver)
        await happen(service, times=2)
        async with delivering(service.database):
            await until(lambda: all_delivered(service.database, 2))
    async with service.database.begin() as db:
        assert await events.prune(db, before=now() - timedelta(days=30)) == 0
        assert await events.prune(db, before=now()) == 2
    await happen(service)
    async with service.database.begin() as db:
        await events.publish(db)
    (listed,) = (await service.client.get("/v1/events")).json()["data"]
    assert listed["number"] == 3
