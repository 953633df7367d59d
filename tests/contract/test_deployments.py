"""Deployments over REST: shapes, permissions and errors. Nothing here starts a process."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from registry.access import service as access
from registry.access.actor import Role
from registry.api import deployments
from registry.api.auth import require_permissions
from registry.artifacts.memory import MemoryBlobStore
from registry.deployments import moves
from registry.kit.db import Database
from registry.kit.rest import add_error_handlers
from registry.packages.model import PackageKind
from support.merged import member, publish


@dataclass
class Service:
    """An account with three merged versions of `facts`, and a fourth of kind state."""

    database: Database
    client: httpx.AsyncClient
    secrets: dict[Role, str]

    async def post(self, move: str, *, role: Role = Role.member, **body: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.secrets[role]}"}
        url = f"/v1/deployments/live/{move}"
        return await self.client.post(url, json=body or None, headers=headers)

    async def get(self, path: str = "/live") -> Any:
        headers = {"Authorization": f"Bearer {self.secrets[Role.viewer]}"}
        return (await self.client.get(f"/v1/deployments{path}", headers=headers)).json()

    async def come_up(self) -> None:
        async with self.database.begin() as db:
            starting = next(r for r in await moves.live(db) if r.status == "starting")
            await moves.activate(db, starting, address="http://127.0.0.1:1")


@pytest.fixture
async def service(database: Database) -> AsyncIterator[Service]:
    app = FastAPI()
    add_error_handlers(app)
    app.include_router(deployments.router)
    require_permissions(app)
    app.state.database = database
    secrets: dict[Role, str] = {}
    async with database.begin() as db:
        actor = await member(db)
        for kind in [PackageKind.merged] * 3 + [PackageKind.state]:
            await publish(db, MemoryBlobStore(), actor, kind=kind)
        for role in Role:
            _, secrets[role] = await access.create_token(
                db, account_id=actor.account_id, name="t", role=role
            )
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield Service(database, client, secrets)


async def test_a_promotion_is_taken_and_shown_as_pending(service: Service) -> None:
    answer = await service.post("promote", version="facts@1")
    assert answer.status_code == 202
    shown = await service.get()
    assert shown == answer.json()
    assert {key: shown[key] for key in shown.keys() - {"created_at", "updated_at"}} == {
        "name": "live",
        "status": "starting",
        "version": None,
        "approval": None,
        "previous": None,
        "pending": {"version": "facts@1", "status": "starting", "error": None},
        "revision": 1,
    }


async def test_what_is_served_and_what_was_before_are_shown(service: Service) -> None:
    for version in ("facts@1", "facts@2"):
        await service.post("promote", version=version)
        await service.come_up()
    shown = await service.get()
    assert (shown["status"], shown["version"], shown["previous"]) == (
        "active",
        "facts@2",
        "facts@1",
    )
    assert shown["pending"] is None
    assert [each["name"] for each in (await service.get(""))["data"]] == ["live"]


async def test_a_rollback_is_taken(service: Service) -> None:
    for version in ("facts@1", "facts@2"):
        await service.post("promote", version=version)
        await service.come_up()
    answer = await service.post("rollback")
    assert answer.status_code == 202
    assert answer.json()["pending"]["version"] == "facts@1"


async def test_the_history_comes_in_pages(service: Service) -> None:
    await service.post("promote", version="facts@1")
    await service.come_up()
    first = await service.get("/live/history?limit=1")
    second = await service.get(f"/live/history?limit=1&cursor={first['next_cursor']}")
    kinds = [page["data"][0]["kind"] for page in (first, second)]
    assert (kinds, second["next_cursor"]) == (["activate", "promote"], None)
    assert second["data"][0].keys() == {"kind", "actor", "from", "to", "digest", "why", "at"}


@pytest.mark.parametrize(
    ("move", "body", "status", "says"),
    [
        ("promote", {"version": "facts@4"}, 409, "facts@4 is not promotable"),
        ("promote", {"version": "facts@9"}, 404, "no version facts@9"),
        ("promote", {"version": "ghosts@1"}, 404, "ghosts"),
        ("promote", {"version": "facts"}, 422, "GROUP@VERSION"),
        ("promote", {}, 422, "body"),
        ("rollback", {}, 404, "no deployment named 'live'"),
    ],
)
async def test_a_bad_move_gets_a_clear_answer(
    service: Service, move: str, body: dict[str, Any], status: int, says: str
) -> None:
    answer = await service.post(move, **body)
    assert answer.status_code == status
    assert says in answer.json()["detail"]
    assert (await service.get(""))["data"] == []


async def test_a_viewer_may_look_but_not_move(service: Service) -> None:
    for move in ("promote", "rollback"):
        answer = await service.post(move, role=Role.viewer, version="facts@1")
        assert answer.status_code == 403
    assert (await service.get(""))["data"] == []
