"""Sessions and merges hold the versions that they need, and let go at their end."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from session.merges import service as merges
from support.hosted import Hosted

STATE = {"type": "save", "kind": "state"}


@pytest.fixture
async def client(service: Hosted) -> AsyncIterator[httpx.AsyncClient]:
    """The session `first` has saved g1@1 and g1@2, and has stopped."""
    async with service.client() as client:
        await start(client, "first", base_model="tiny", group="g1")
        for number in (1, 2):
            assert (await do(client, "first", number, STATE))["status"] == "completed"
        await stop(client, "first")
        yield client


async def start(client: httpx.AsyncClient, name: str, **wish: Any) -> None:
    made = await client.post("/v1/sessions", json={"name": name, **wish})
    assert made.status_code == 201, made.text
    found = (await client.get(f"/v1/sessions/{name}?wait=20")).json()
    assert found["status"] == "running", found


async def stop(client: httpx.AsyncClient, name: str) -> None:
    await client.post(f"/v1/sessions/{name}/stop")
    assert (await client.get(f"/v1/sessions/{name}?wait=20")).json()["status"] == "stopped"


async def do(client: httpx.AsyncClient, session: str, number: int, body: Any) -> dict[str, Any]:
    form = {"number": number, "token": f"t{number}", "body": body}
    accepted = await client.post(f"/v1/sessions/{session}/operations", json=form)
    assert accepted.status_code == 202, accepted.text
    url = f"/v1/operations/{accepted.json()['id']}?wait=20"
    found: dict[str, Any] = (await client.get(url)).json()
    return found


async def delete(client: httpx.AsyncClient, version: int) -> str:
    """What is said where it is refused; else nothing."""
    url = f"/v1/groups/g1/versions/{version}"
    found = await client.get(url)
    answer = await client.delete(url, headers={"If-Match": found.headers["etag"]})
    return "" if answer.status_code == 200 else str(answer.json()["detail"])


async def test_a_session_holds_what_it_was_created_from_and_what_it_loads(
    client: httpx.AsyncClient,
) -> None:
    await start(client, "second", from_version="g1@1")
    assert await delete(client, 1) == "g1@1 is not deleted: it is held by session second"
    loaded = await do(client, "second", 1, {"type": "load", "source": "g1@2"})
    assert loaded["status"] == "completed"
    assert "held by session second" in await delete(client, 2)
    await stop(client, "second")
    assert [await delete(client, number) for number in (1, 2)] == ["", ""]


async def test_a_load_holds_its_version_from_when_it_is_accepted(
    service: Hosted, client: httpx.AsyncClient
) -> None:
    await start(client, "second", base_model="tiny", group="g1")
    await service.worker.close()
    form = {"number": 1, "token": "t", "body": {"type": "load", "source": "g1@2"}}
    assert (await client.post("/v1/sessions/second/operations", json=form)).status_code == 202
    assert "held by session second" in await delete(client, 2)


async def test_a_saved_version_is_held_by_nobody(client: httpx.AsyncClient) -> None:
    """A save's parent may go: the lineage keeps its tombstone."""
    await start(client, "second", base_model="tiny", group="g1")
    for number in (1, 2):
        await do(client, "second", number, STATE)
    assert await delete(client, 3) == ""
    found = (await client.get("/v1/groups/g1/versions/4/lineage")).json()
    assert [(node["ref"], node["deleted_at"] is None) for node in found["nodes"]] == [
        ("g1@3", False),
        ("g1@4", True),
    ]


async def test_what_is_deleted_is_neither_resumed_nor_loaded_nor_sampled_nor_merged(
    client: httpx.AsyncClient,
) -> None:
    await start(client, "second", base_model="tiny", group="g1")
    assert await delete(client, 1) == ""
    form = {"token": "t", "prompt": {"dtype": "int64", "data": [5]}, "max_tokens": 1}
    for url, body in (
        ("/v1/sessions", {"from_version": "g1@1"}),
        ("/v1/samples", {**form, "source": "g1@1"}),
        ("/v1/groups/g1/versions/1/merge", {}),
    ):
        answer = await client.post(url, json=body)
        assert answer.status_code == 409
        assert "g1@1 was deleted at" in answer.json()["detail"]
    load = await do(client, "second", 1, {"type": "load", "source": "g1@1"})
    assert (load["status"], load["error"]["kind"]) == ("failed", "conflict")
    assert "g1@1 was deleted at" in load["error"]["message"]


async def test_a_session_that_fails_lets_go(service: Hosted, client: httpx.AsyncClient) -> None:
    version = (await client.get("/v1/groups/g1/versions/1")).json()
    folder = f"{version['id']}/checkpoints/hf/adapter_config.json"
    for key in await service.store.keys(""):
        if key.endswith(folder):
            await service.store.put_bytes(key, b"{}")
    await client.post("/v1/sessions", json={"name": "second", "from_version": "g1@1"})
    found = (await client.get("/v1/sessions/second?wait=20")).json()
    assert found["status"] == "failed", found
    assert await delete(client, 1) == ""


async def test_a_merge_holds_its_source_until_it_ends(
    service: Hosted, client: httpx.AsyncClient
) -> None:
    await service.worker.close()
    asked = (await client.post("/v1/groups/g1/versions/1/merge")).json()
    assert f"held by merge {asked['id']}" in await delete(client, 1)
    async with service.database.begin() as db:
        merge = await merges.claim(db, "wrk_other")
        assert merge is not None
        assert merge.id == asked["id"]
        await merges.fail(db, merge, error="no room")
    assert await delete(client, 1) == ""
