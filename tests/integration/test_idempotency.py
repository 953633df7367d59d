"""A request with an Idempotency-Key has one effect, whatever is repeated, raced or killed."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select, update

from registry.access.actor import Role
from registry.idempotency.model import IdempotencyKey
from registry.kit.clock import now
from registry.settings import Settings
from session.app import create_app
from support import dying
from support.hosted import Hosted, hosted
from support.waiting import until

KEY = {"Idempotency-Key": "the key of this test"}
CHANGES: dict[str, Any] = {
    "/v1/groups": {"name": "new"},
    "/v1/sessions": {"base_model": "tiny", "group": "facts", "lora": {"rank": 4}},
}


@pytest.fixture(params=["sqlite", "postgresql"])
async def service(
    request: pytest.FixtureRequest, tiny: Path, tmp_path: Path
) -> AsyncIterator[Hosted]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else None
    async with hosted(tmp_path / "home", model=tiny, database_url=url) as service:
        yield service


async def count(client: httpx.AsyncClient, path: str) -> int:
    return len((await client.get(path)).json()["data"])


def test_every_route_that_changes_something_takes_a_key(tmp_path: Path) -> None:
    paths = create_app(Settings(home=tmp_path)).openapi()["paths"]
    takes = {
        (method, path): [each["name"] for each in said.get("parameters", ())]
        for path, methods in paths.items()
        for method, said in methods.items()
    }
    wrong = [
        place
        for place, names in takes.items()
        if ("Idempotency-Key" in names) == (place[0] == "get")
    ]
    assert len(takes) > 40
    assert wrong == []


async def test_a_repeated_request_is_answered_again_and_runs_once(service: Hosted) -> None:
    async with service.client() as client:
        for path, body in CHANGES.items():
            before = await count(client, path)
            headers = {"Idempotency-Key": f"key of {path}"}
            first, second = [await client.post(path, json=body, headers=headers) for _ in range(2)]
            assert (first.status_code, first.json()) == (201, second.json())
            assert second.status_code == 201
            assert "idempotent-replayed" not in first.headers
            assert second.headers["idempotent-replayed"] == "true"
            assert await count(client, path) == before + 1


async def test_of_ten_equal_requests_at_once_one_runs(service: Hosted) -> None:
    async with service.client() as client:
        for path, body in CHANGES.items():
            before = await count(client, path)
            headers = {"Idempotency-Key": f"race on {path}"}
            asked = (client.post(path, json=body, headers=headers) for _ in range(10))
            answers = await asyncio.gather(*asked)
            made = [each for each in answers if each.status_code == 201]
            waiting = [each for each in answers if each.status_code == 409]
            assert len(made) + len(waiting) == 10
            assert len([each for each in made if "idempotent-replayed" not in each.headers]) == 1
            assert {each.headers["retry-after"] for each in waiting} <= {"1"}
            assert len({each.text for each in made}) == 1
            assert await count(client, path) == before + 1


async def test_a_secret_is_shown_once_and_not_kept_with_the_key(service: Hosted) -> None:
    wish, unknown = {"url": "https://1.1.1.1/hook"}, (409, "AnswerUnknown")
    async with service.client() as client:
        made = await client.post("/v1/webhooks", json=wish, headers=KEY)
        rotation = f"/v1/webhooks/{made.json()['id']}/rotate"
        headers = {"Idempotency-Key": "another"}
        rotated = await client.post(rotation, headers=headers)
        secrets = [answer.json()["secret"] for answer in (made, rotated)]
        again = [
            await client.post("/v1/webhooks", json=wish, headers=KEY),
            await client.post(rotation, headers=headers),
        ]
        assert [(each.status_code, each.json()["title"]) for each in again] == [unknown] * 2
        assert await count(client, "/v1/webhooks") == 1
    async with service.database.read() as db:
        kept = (await db.execute(select(IdempotencyKey.__table__))).all()
    assert len(kept) == 2
    assert all(secret.startswith("whsec_") for secret in secrets)
    assert not [secret for secret in secrets if secret in str(kept)]


async def test_a_move_that_is_repeated_is_no_second_move(service: Hosted) -> None:
    """Without a key the second one would find that the revision has moved."""
    async with service.client() as client:
        made = await client.post("/v1/sessions", json=CHANGES["/v1/sessions"])
        name = made.json()["name"]
        await client.get(f"/v1/sessions/{name}?wait=20")
        save = {"number": 1, "token": "t", "body": {"type": "save", "kind": "state"}}
        sent = await client.post(f"/v1/sessions/{name}/operations", json=save)
        await client.get(f"/v1/operations/{sent.json()['id']}?wait=20")
        wish, headers = {"tags": ["golden"]}, {"If-Match": '"1"', **KEY}
        path = "/v1/groups/facts/versions/1"
        edits = [await client.patch(path, json=wish, headers=headers) for _ in range(2)]
        assert [(e.status_code, e.headers["etag"]) for e in edits] == [(200, '"2"')] * 2
        stops = [await client.post(f"/v1/sessions/{name}/stop") for _ in range(2)]
        assert {answer.status_code for answer in stops} == {202}


async def test_the_keys_of_another_token_are_its_own(service: Hosted) -> None:
    async with service.client() as alice, service.client(await service.token("bob")) as bob:
        answers = [
            await each.post("/v1/groups", json={"name": "new"}, headers=KEY)
            for each in (alice, bob)
        ]
        assert [answer.status_code for answer in answers] == [201, 201]
        assert answers[0].json()["id"] != answers[1].json()["id"]
    async with service.client(await service.token("default", Role.viewer)) as viewer:
        answer = await viewer.post("/v1/groups", json={"name": "new"}, headers=KEY)
        assert answer.status_code == 403


@pytest.mark.parametrize(
    ("moment", "groups", "title"),
    [("before the commit", 0, None), ("before the answer", 1, "AnswerUnknown")],
)
async def test_a_killed_process_leaves_no_effect_without_its_key(
    service: Hosted, tmp_path: Path, moment: str, groups: int, title: str | None
) -> None:
    url = service.database.engine.url.render_as_string(hide_password=False)
    address, body = tmp_path / "address", {"name": "once"}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, dying.__file__, url, moment, str(address)), env=environment
    )
    await until(address.exists)
    async with httpx.AsyncClient(headers={**service.headers, **KEY}, trust_env=False) as dead:
        with pytest.raises(httpx.TransportError):
            await dead.post(f"{address.read_text()}/v1/groups", json=body)
    assert await process.wait() == -9
    async with service.client() as client:
        assert await count(client, "/v1/groups") == groups
        again = await client.post("/v1/groups", json=body, headers=KEY)
        assert (again.status_code, again.json()["title"]) == (409, "StillRunning")
        async with service.database.begin() as db:
            await db.execute(update(IdempotencyKey).values(taken_until=now()))
        later = await client.post("/v1/groups", json=body, headers=KEY)
        assert (later.status_code, later.json().get("title")) == (409 if title else 201, title)
        assert await count(client, "/v1/groups") == 1
