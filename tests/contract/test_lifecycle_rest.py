"""What happens to a version after its birth, as a client of the registry's REST sees it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from registry.access import service as access
from registry.access.actor import Role
from registry.kit.clock import now
from registry.kit.db import Database
from registry.packages import lineage
from registry.packages.model import PackageFile
from support.packages import a_version
from support.registry_service import ADAPTER, BYTES, Service, is_problem, registry_service

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


@pytest.mark.parametrize(
    "place",
    ["/aliases", "/aliases/prod", "/history", "/standing", "/latest", "/versions/1/lineage"],
)
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


async def edit(service: Service, revision: int, **changes: Any) -> httpx.Response:
    return await service.client.patch(ONE, json=changes, headers=at(revision))


async def test_what_is_said_of_a_version_changes_and_nothing_else(service: Service) -> None:
    before = (await service.client.get(ONE)).json()
    said = {"description": "golden", "tags": ["b", "a", "a"], "stage": "staging"}
    answer = await edit(service, 1, **said, expires_at="2031-01-01T01:00:00+01:00", why="eval")
    assert answer.headers["etag"] == '"2"'
    assert answer.json() == {
        **{**before, **said, "tags": ["a", "b"], "revision": 2},
        "expires_at": "2031-01-01T00:00:00Z",
    }
    answer = await edit(service, 2, tags=["b", "c"], expires_at=None)
    assert answer.json() == {**before, **said, "tags": ["b", "c"], "revision": 3}
    assert (await service.client.get(ONE)).json() == answer.json()
    (event,) = await history(service)
    assert (event["kind"], event["from"], event["to"], event["why"]) == (
        *("stage", "none", "staging", "eval"),
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"digest": "sha256:0"}, "digest"),
        ({"stage": "prod"}, "stage"),
        ({"tags": ["a"] * 51}, "tags: 51"),
        ({"tags": [""]}, "tags"),
        ({"tags": [" a"]}, "tags"),
        ({"tags": ["a\0"]}, "tags"),
        ({"tags": ["t" * 129]}, "tags"),
        ({"description": "d" * 1025}, "description"),
        ({"description": None}, "description"),
        ({"expires_at": "2031-01-01T00:00:00"}, "expires_at"),
        ({"expires_at": "9999-01-01T00:00:00Z"}, "expires_at"),
    ],
)
async def test_a_bad_edit_is_refused_by_field(
    service: Service, changes: dict[str, Any], named: str
) -> None:
    assert named in is_problem(await edit(service, 1, **changes), 422, "invalid")
    assert (await service.client.get(ONE)).headers["etag"] == '"1"'


async def test_of_ten_edits_of_one_state_one_is_made(service: Service) -> None:
    answers = await asyncio.gather(*(edit(service, 1, tags=[str(n)]) for n in range(10)))
    assert sorted(answer.status_code for answer in answers) == [200, *[412] * 9]
    is_problem(await service.client.patch(ONE, json={"tags": []}), 428, "precondition_required")


async def listed(service: Service, query: str) -> list[str]:
    answer = await service.client.get(f"/v1/groups/demo/versions?{query}")
    assert answer.status_code == 200, answer.text
    return [row["ref"] for row in answer.json()["data"]]


async def test_versions_are_filtered_by_what_is_said_of_them(service: Service) -> None:
    await edit(service, 1, description="100% Golden_run", tags=["best", "x"], stage="staging")
    await service.client.put(f"{ONE}/approval", json={"approval": "approved"}, headers=at(2))
    await point(service, 1, NEW)
    await service.publish(session_id="ses_1")
    for query in (
        *("stage=staging", "approval=approved", "alias=prod", "tag=best", "text=golden"),
        *("text=100%25", "text=n_r", "tag=x&stage=staging&text=RUN&alias=prod"),
    ):
        assert await listed(service, query) == ["demo@1"], query
    for query in ("stage=production", "alias=x", "tag=bes", "text=1%25G", "text=goldenrun"):
        assert await listed(service, query) == [], query
    assert await listed(service, "session=ses_1") == ["demo@3"]
    assert await listed(service, "approval=pending") == ["demo@3", "demo@2"]


async def test_versions_are_filtered_by_time(service: Service) -> None:
    made = (await service.client.get("/v1/groups/demo/versions/2")).json()["created_at"]
    assert await listed(service, f"created_after={made}") == ["demo@2"]
    assert await listed(service, f"created_before={made}") == ["demo@1"]


@pytest.mark.parametrize(
    "query",
    [
        *("stage=x", "approval=x", "kind=x", "tag=", "tag=%00", "text=%00", "session=../x"),
        *("created_after=2030-01-01T00:00:00", "created_before=9999-01-01T00:00:00Z"),
    ],
)
async def test_a_bad_filter_is_refused(service: Service, query: str) -> None:
    answer = await service.client.get(f"/v1/groups/demo/versions?{query}")
    is_problem(answer, 422, "invalid")


@pytest.mark.parametrize(
    "query", ["stage=none", "tag=x", "text=x", "alias=x", "created_after=2030-01-01T00:00:00Z"]
)
async def test_a_cursor_belongs_to_its_filters(service: Service, query: str) -> None:
    url = "/v1/groups/demo/versions?limit=1"
    cursor = (await service.client.get(url)).json()["next_cursor"]
    is_problem(await service.client.get(f"{url}&{query}&cursor={cursor}"), 400, "malformed")


async def test_the_latest_is_answered_in_all_and_by_kind(service: Service) -> None:
    url = "/v1/groups/demo/latest"
    for query, expected in (("", 2), ("?kind=adapter", 2)):
        assert (await service.client.get(url + query)).json()["version"] == expected
    answer = await service.client.get(f"{url}?kind=state")
    assert "no version of kind state" in is_problem(answer, 404, "not_found")
    await service.client.post("/v1/groups", json={"name": "empty"})
    for place in ("latest", "versions/latest"):
        answer = await service.client.get(f"/v1/groups/empty/{place}")
        assert "'empty' has no version yet" in is_problem(answer, 404, "not_found")


async def family(service: Service) -> None:
    """old@1 -> kin@1 -> kin@3 -> kin@4 and other@1; kin@2 is no relative."""
    async with service.database.begin() as db:
        oldest = await a_version(db, service.alice, "old")
        middle = await a_version(db, service.alice, "kin", parent_id=oldest.id)
        await a_version(db, service.alice, "kin")
        child = await a_version(db, service.alice, "kin", parent_id=middle.id, session_id="ses_1")
        for group in ("kin", "other"):
            await a_version(db, service.alice, group, parent_id=child.id)


async def test_lineage_goes_both_ways_over_groups(service: Service) -> None:
    await family(service)
    found = (await service.client.get("/v1/groups/kin/versions/1/lineage")).json()
    assert (found["root"], found["cut"]) == ("kin@1", False)
    refs = [node["ref"] for node in found["nodes"]]
    assert refs == ["old@1", "kin@1", "kin@3", "kin@4", "other@1"]
    assert [(edge["from"], edge["to"]) for edge in found["edges"]] == [
        *(("old@1", "kin@1"), ("kin@1", "kin@3"), ("kin@3", "kin@4"), ("kin@3", "other@1")),
    ]
    assert found["nodes"][2]["session"] == "ses_1"
    for place, expected in (("kin/versions/2", ["kin@2"]), ("other/versions/latest", None)):
        found = (await service.client.get(f"/v1/groups/{place}/lineage")).json()
        refs = [node["ref"] for node in found["nodes"]]
        assert refs == (expected or ["old@1", "kin@1", "kin@3", "other@1"])


async def test_a_long_lineage_is_cut(service: Service) -> None:
    async with service.database.begin() as db:
        parent = await a_version(db, service.alice, "chain")
        for _ in range(lineage.MOST_NODES + 1):
            parent = await a_version(db, service.alice, "chain", parent_id=parent.id)
    found = (await service.client.get("/v1/groups/chain/versions/1/lineage")).json()
    assert (found["cut"], len(found["nodes"])) == (True, lineage.MOST_NODES + 1)


async def test_an_intact_version_is_found_so(service: Service) -> None:
    found = (await service.client.post(f"{ONE}/verify")).json()
    digest = (await service.client.get(ONE)).json()["digest"]
    assert found == {
        **{"ref": "demo@1", "digest": digest, "intact": True, "manifest": True},
        "files": [{"path": ADAPTER, "size": len(BYTES), "problem": None}],
    }


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (BYTES[:-1] + b"]", "its SHA-256 is"),
        (BYTES[:-1], "it has 7 bytes instead of 8"),
        (b"", "it has 0 bytes instead of 8"),
        (None, "it is missing"),
    ],
)
async def test_a_damaged_file_is_named(
    service: Service, damage: bytes | None, problem: str
) -> None:
    key = await service.publish()
    if damage is None:
        await service.store.delete(key)
    else:
        await service.store.put_bytes(key, damage)
    answer = await service.client.post("/v1/groups/demo/versions/latest/verify")
    assert answer.json()["intact"] is False
    (file,) = answer.json()["files"]
    assert file["path"] == ADAPTER
    assert file["problem"].startswith(problem)
    assert (await service.client.post(f"{ONE}/verify")).json()["intact"] is True


async def test_what_lies_beside_the_manifest_is_named(service: Service) -> None:
    key = await service.publish()
    await service.store.put_bytes(key.removesuffix(ADAPTER) + "checkpoints/hf/x.json", b"{}")
    found = (await service.client.post("/v1/groups/demo/versions/3/verify")).json()
    assert found["intact"] is False
    assert found["files"][-1] == {
        **{"path": "checkpoints/hf/x.json", "size": 2, "problem": "it is not in the manifest"}
    }


async def test_another_list_of_files_is_noticed(service: Service) -> None:
    await service.publish()
    async with service.database.begin() as db:
        await db.execute(update(PackageFile).values(sha256="00"))
    found = (await service.client.post("/v1/groups/demo/versions/3/verify")).json()
    assert (found["intact"], found["manifest"]) == (False, False)


@pytest.mark.parametrize(
    ("method", "url", "body", "field"),
    [
        ("PUT", PROD, rb'{"version": 1, "why": "\ud800"}', "why"),
        ("PUT", f"{ONE}/approval", rb'{"approval": "rejected", "why": "\ud800"}', "why"),
        ("PATCH", ONE, rb'{"description": "\ud800"}', "description"),
        ("PUT", PROD, b'{"version": true}', "version"),
        ("PUT", PROD, b'{"version": "1"}', "version"),
        ("PUT", PROD, b'{"version": 1, "protected": "on"}', "protected"),
        ("PATCH", ONE, b'{"expires_at": "1999-01-01T00:00:00Z"}', "expires_at"),
    ],
)
async def test_a_body_that_means_nothing_is_refused_by_field(
    service: Service, method: str, url: str, body: bytes, field: str
) -> None:
    headers = {**(NEW if url == PROD else at(1)), "Content-Type": "application/json"}
    answer = await service.client.request(method, url, content=body, headers=headers)
    assert is_problem(answer, 422, "invalid").startswith(f"{field}: ")
    assert (await service.client.get(ONE)).headers["etag"] == '"1"'


async def test_an_alias_is_made_or_moved_and_never_either(service: Service) -> None:
    await point(service, 1, NEW)
    is_problem(await point(service, 2, {**at(1), **NEW}), 400, "malformed")
    assert [event["to"] for event in await history(service)] == ["demo@1"]


async def test_a_name_with_a_slash_reaches_no_other_thing(service: Service) -> None:
    await point(service, 1, NEW)
    for path in ("/v1/groups/demo%2Fretention", "/v1/groups/demo%2faliases%2fprod"):
        assert "slash" in is_problem(await service.client.delete(path), 422, "invalid")
    assert (await service.client.get(PROD)).status_code == 200
