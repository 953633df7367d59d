"""What happens to a version after its birth, as a client of the registry's REST sees it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from registry.access import service as access
from registry.access.actor import Role
from registry.kit.clock import now
from registry.kit.db import Database
from support.registry_service import Service, is_problem, registry_service

ONE = "/v1/groups/demo/versions/1"
PROD = "/v1/groups/demo/aliases/prod"
NEW = {"If-None-Match": "*"}


@pytest.fixture
async def service(database: Database) -> AsyncIterator[Service]:
    """Its group `demo` has two versions."""
    async with registry_service(database) as service:
        for _ in range(2):
            await service.publish()
        yield service


def at(revision: object) -> dict[str, str]:
    return {"If-Match": f'"{revision}"'}


async def point(
    service: Service, version: int, headers: dict[str, str], **more: Any
) -> httpx.Response:
    return await service.client.put(PROD, json={"version": version, **more}, headers=headers)


async def history(service: Service, query: str = "") -> list[dict[str, Any]]:
    answer = await service.client.get(f"/v1/groups/demo/history{query}")
    found: list[dict[str, Any]] = answer.json()["data"]
    return found


async def test_a_decision_takes_the_etag_of_what_was_read(service: Service) -> None:
    tag = (await service.client.get(ONE)).headers["etag"]
    wish = {"approval": "approved", "why": "evaluated"}
    answer = await service.client.put(f"{ONE}/approval", json=wish, headers={"If-Match": tag})
    assert (answer.status_code, answer.json()["approval"]) == (200, "approved")
    assert answer.headers["etag"] == '"2"' == (await service.client.get(ONE)).headers["etag"]
    (event,) = await history(service)
    assert event.pop("token").startswith("tok_")
    assert event.pop("digest") == answer.json()["digest"]
    assert event.pop("at").endswith("Z")
    assert event == {
        **{"kind": "approval", "alias": None, "version": 1, "role": "member"},
        **{"from": "pending", "to": "approved", "why": "evaluated"},
    }


@pytest.mark.parametrize(
    ("headers", "status", "kind"),
    [
        ({}, 428, "precondition_required"),
        (at(7), 412, "precondition_failed"),
        ({"If-Match": "*"}, 400, "malformed"),
        ({"If-Match": '"1", "2"'}, 400, "malformed"),
        ({"If-Match": '"9999999999"'}, 400, "malformed"),
    ],
)
async def test_a_change_without_the_current_etag_is_refused(
    service: Service, headers: dict[str, str], status: int, kind: str
) -> None:
    assert (await point(service, 1, NEW)).status_code == 200
    for method, url, body in (
        ("PUT", f"{ONE}/approval", {"approval": "approved"}),
        ("PUT", PROD, {"version": 2}),
        ("DELETE", PROD, None),
    ):
        answer = await service.client.request(method, url, json=body, headers=headers)
        is_problem(answer, status, kind)
    assert len(await history(service)) == 1
    assert (await service.client.get(PROD)).json()["version"] == 1


async def test_of_ten_moves_from_one_revision_one_is_made(service: Service) -> None:
    tag = (await point(service, 1, NEW)).headers["etag"]
    answers = await asyncio.gather(
        *(point(service, 2, {"If-Match": tag}, why=str(n)) for n in range(10))
    )
    assert sorted(answer.status_code for answer in answers) == [200, *[412] * 9]
    (_, made) = (await history(service))[::-1]
    assert (made["from"], made["to"]) == ("demo@1", "demo@2")
    assert (await service.client.get(PROD)).json()["ref"] == "demo@2"


async def test_of_ten_that_make_an_alias_one_does(service: Service) -> None:
    answers = await asyncio.gather(*(point(service, 1 + n % 2, NEW) for n in range(10)))
    assert sorted(answer.status_code for answer in answers) == [200, *[412] * 9]
    assert len(await history(service)) == 1


async def test_an_alias_is_listed_shown_and_removed(service: Service) -> None:
    made = (await point(service, 2, NEW)).json()
    assert made.pop("updated_at").endswith("Z")
    assert made.pop("digest").startswith("sha256:")
    assert made == {
        **{"alias": "prod", "version": 2, "ref": "demo@2", "protected": False, "revision": 1}
    }
    listed = (await service.client.get("/v1/groups/demo/aliases")).json()
    assert [row["alias"] for row in listed["data"]] == ["prod"]
    assert (await service.client.get("/v1/groups/demo/versions/2")).json()["aliases"] == ["prod"]
    gone = await service.client.delete(f"{PROD}?why=over", headers=at(1))
    assert (gone.status_code, gone.content) == (204, b"")
    assert "no alias" in is_problem(await service.client.get(PROD), 404, "not_found")
    assert (await service.client.get("/v1/groups/demo/aliases")).json()["data"] == []
    assert [row["why"] for row in await history(service)] == ["over", ""]


async def test_an_alias_stands_for_a_number_where_a_version_is_read(service: Service) -> None:
    await point(service, 1, NEW)
    for place in ("prod", "latest"):
        url = f"/v1/groups/demo/versions/{place}"
        found = (await service.client.get(url)).json()
        assert found["version"] == (1 if place == "prod" else 2)
        (file,) = (await service.client.get(f"{url}/files")).json()["data"]
        got = await service.client.get(f"{url}/files/{file['path']}")
        assert (got.status_code, len(got.content)) == (200, file["size"])
    missing = await service.client.get("/v1/groups/demo/versions/other")
    assert "'demo' has no alias named 'other'" in is_problem(missing, 404, "not_found")


async def test_what_prod_was_at_a_time_is_answered(service: Service) -> None:
    times, tag = [now()], None
    for version in (1, 2):
        answer = await point(service, version, {"If-Match": tag} if tag else NEW)
        tag = answer.headers["etag"]
        times.append(now())
    for moment, expected in zip(times, (None, "demo@1", "demo@2"), strict=True):
        query = {"at": moment.isoformat()}
        standing = (await service.client.get("/v1/groups/demo/standing", params=query)).json()
        assert [row["to"] for row in standing["data"]] == ([expected] if expected else [])
        query |= {"alias": "prod", "limit": "1"}
        rows = (await service.client.get("/v1/groups/demo/history", params=query)).json()["data"]
        assert [row["to"] for row in rows] == ([expected] if expected else [])


async def test_the_history_is_paged(service: Service) -> None:
    tag = (await point(service, 1, NEW)).headers["etag"]
    for n in range(4):
        tag = (await point(service, 1 + (n + 1) % 2, {"If-Match": tag})).headers["etag"]
    url, cursor, seen = "/v1/groups/demo/history?limit=2", "", []
    while True:
        page = (await service.client.get(url + cursor)).json()
        seen += [row["to"] for row in page["data"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == ["demo@1", "demo@2", "demo@1", "demo@2", "demo@1"]
    other = await service.client.get(f"{url}{cursor}&alias=prod")
    is_problem(other, 400, "malformed")


async def test_only_an_admin_moves_a_protected_alias(service: Service) -> None:
    admin = await service.token(Role.admin)
    tag = (await point(service, 1, {**admin, **NEW}, protected=True)).headers["etag"]
    refused = await point(service, 2, {"If-Match": tag})
    assert "demo:prod is protected" in is_problem(refused, 403, "forbidden")
    moved = await point(service, 2, {**admin, "If-Match": tag})
    assert (moved.status_code, moved.json()["protected"]) == (200, True)


async def test_a_viewer_changes_nothing(service: Service) -> None:
    viewer = await service.token(Role.viewer)
    assert (await point(service, 1, NEW)).status_code == 200
    for method, url in (("PUT", f"{ONE}/approval"), ("PUT", PROD), ("DELETE", PROD)):
        answer = await service.client.request(method, url, json={}, headers={**viewer, **at(1)})
        is_problem(answer, 403, "forbidden")
    assert (await service.client.get(PROD, headers=viewer)).status_code == 200


@pytest.mark.parametrize("place", ["/aliases", "/aliases/prod", "/history", "/standing"])
async def test_another_accounts_history_is_unknown(service: Service, place: str) -> None:
    await point(service, 1, NEW)
    async with service.database.begin() as db:
        bob = await access.create_account(db, name="bob")
    headers = await service.token(Role.admin, bob.id)
    answers = [
        is_problem(
            await service.client.get(f"/v1/groups/{group}{place}", headers=headers),
            404,
            "not_found",
        )
        for group in ("demo", "nope")
    ]
    assert answers[1] == answers[0].replace("demo", "nope")
    for method, url in (("PUT", f"{ONE}/approval"), ("PUT", PROD), ("DELETE", PROD)):
        body = {"version": 1} if url == PROD else {"approval": "approved"}
        headers |= at(1)
        answer = await service.client.request(method, url, json=body, headers=headers)
        is_problem(answer, 404, "not_found")


@pytest.mark.parametrize(
    "body",
    [
        *({}, {"version": 0}, {"version": 2**31}, {"version": "x"}, {"version": 1, "x": 1}),
        *({"version": 1, "why": "w" * 1025}, {"version": 1, "why": "\0"}),
    ],
)
async def test_a_bad_move_is_refused(service: Service, body: Any) -> None:
    answer = await service.client.put(PROD, json=body, headers=NEW)
    is_problem(answer, 422, "invalid")
    missing = await service.client.put(PROD, json={"version": 9}, headers=NEW)
    assert "demo@9" in is_problem(missing, 404, "not_found")
