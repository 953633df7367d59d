"""Which answers are kept: what may go otherwise the next time is asked anew."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from registry.access import service as access
from registry.access.actor import Role
from registry.api.auth import Member, Viewer
from registry.api.idempotency import IdempotencyKeys
from registry.kit.db import Database
from registry.kit.errors import Kind, ServiceError
from registry.kit.rest import Db, add_error_handlers

runs: list[str] = []


class Full(ServiceError):
    kind = Kind.limit_exceeded


class Taken(ServiceError):
    kind = Kind.conflict


def application() -> FastAPI:
    app = FastAPI()
    add_error_handlers(app)
    app.add_middleware(IdempotencyKeys)

    @app.post("/{what}")
    async def change(actor: Viewer, db: Db, what: str, x: int = 0) -> Any:
        runs.append(what)
        match what:
            case "bug":
                raise ValueError(what)
            case "full":
                raise Full(what)
            case "taken":
                raise Taken(what)
            case "large":
                return "a" * 2**20
        return {"run": len(runs)}

    @app.post("/openai/stream")
    async def stream(actor: Viewer) -> StreamingResponse:
        runs.append("stream")
        return StreamingResponse(iter(["data: 1\n\n"]), media_type="text/event-stream")

    @app.put("/members")
    async def members(actor: Member) -> int:
        runs.append("members")
        return len(runs)

    return app


@pytest.fixture
async def client(database: Database) -> AsyncIterator[httpx.AsyncClient]:
    """It speaks as a viewer, and always with the same key."""
    app = application()
    app.state.database = database
    runs.clear()
    async with database.begin() as db:
        account = await access.create_account(db, name="alice")
        _, secret = await access.create_token(db, account_id=account.id, name="t", role=Role.viewer)
    headers = {"Authorization": f"Bearer {secret}", "Idempotency-Key": "one"}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://test", headers=headers
    ) as client:
        yield client


@pytest.mark.parametrize(("what", "status"), [("thing", 200), ("taken", 409)])
async def test_an_answer_is_given_again_with_a_word_that_it_is(
    client: httpx.AsyncClient, what: str, status: int
) -> None:
    first, second = [await client.post(f"/{what}") for _ in range(2)]
    assert runs == [what]
    assert (first.status_code, first.content) == (status, second.content)
    assert second.status_code == status
    assert "idempotent-replayed" not in first.headers
    assert dict(second.headers) == {**first.headers, "idempotent-replayed": "true"}


@pytest.mark.parametrize(("what", "status"), [("bug", 500), ("full", 429)])
async def test_what_may_go_well_the_next_time_runs_again(
    client: httpx.AsyncClient, what: str, status: int
) -> None:
    answers = [await client.post(f"/{what}") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [status, status]
    assert runs == [what, what]


async def test_an_answer_too_large_to_keep_is_never_made_twice(client: httpx.AsyncClient) -> None:
    first, second = [await client.post("/large") for _ in range(2)]
    assert (first.status_code, len(first.content)) == (200, 2**20 + 2)
    assert (second.status_code, second.json()["title"]) == (409, "AnswerUnknown")
    assert runs == ["large"]


async def test_a_stream_is_neither_held_back_nor_kept(client: httpx.AsyncClient) -> None:
    answers = [await client.post("/openai/stream") for _ in range(2)]
    assert [answer.text for answer in answers] == ["data: 1\n\n"] * 2
    assert runs == ["stream", "stream"]


async def test_a_refusal_for_who_asks_uses_no_key_up(client: httpx.AsyncClient) -> None:
    assert (await client.put("/members")).status_code == 403
    assert (await client.put("/members", headers={"Authorization": "Bearer x"})).status_code == 401
    assert (await client.post("/thing")).status_code == 200


@pytest.mark.parametrize("key", ["", "a" * 256, "tab\tinside"])
async def test_a_key_is_1_to_255_printable_characters(client: httpx.AsyncClient, key: str) -> None:
    answer = await client.post("/thing", headers={"Idempotency-Key": key})
    assert (answer.status_code, answer.json()["title"]) == (400, "InvalidKey")
    assert runs == []


async def test_a_key_is_bound_to_its_request(client: httpx.AsyncClient) -> None:
    assert (await client.post("/thing", json={"a": 1})).status_code == 200
    for path, body in (("/thing", {"a": 2}), ("/other", {"a": 1}), ("/thing?x=1", {"a": 1})):
        answer = await client.post(path, json=body)
        assert (answer.status_code, answer.json()["title"]) == (422, "KeyReused")
    changed = await client.post("/thing", json={"a": 1}, headers={"If-Match": '"1"'})
    assert changed.status_code == 422
    assert runs == ["thing"]
