"""Deleting a version, and what keeps one from it, as a client of the registry's REST sees it."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from registry.access import service as access
from registry.access.actor import Role
from registry.kit.db import Database
from registry.packages import holds, service
from registry.packages.model import HolderKind
from registry.packages.ref import PackageRef
from support.registry_service import ADAPTER, BYTES, Service, is_problem, registry_service

GROUP = "/v1/groups/demo"
ONE = f"{GROUP}/versions/1"
NEW = {"If-None-Match": "*"}


@pytest.fixture
async def demo(database: Database) -> AsyncIterator[Service]:
    """Its group `demo` has two versions."""
    async with registry_service(database) as service:
        for _ in range(2):
            await service.publish()
        yield service


async def tag(service: Service, url: str = ONE) -> dict[str, str]:
    return {"If-Match": (await service.client.get(url)).headers["etag"]}


async def delete(service: Service, url: str = ONE, *, why: str = "") -> httpx.Response:
    headers = await tag(service, url)
    return await service.client.delete(url, params={"why": why}, headers=headers)


async def purge(service: Service, url: str = ONE) -> httpx.Response:
    headers = {**await tag(service, url), **await service.token(Role.admin)}
    return await service.client.post(f"{url}/purge", headers=headers)


async def events(service: Service) -> list[tuple[str, ...]]:
    rows = (await service.client.get(f"{GROUP}/history?version=1")).json()["data"]
    return [(row["kind"], row["from"], row["to"], row["why"]) for row in rows]


async def listed(service: Service, query: str = "") -> list[int]:
    rows = (await service.client.get(f"{GROUP}/versions{query}")).json()["data"]
    return [row["version"] for row in rows]


async def test_a_deleted_version_is_a_tombstone_that_no_list_holds(demo: Service) -> None:
    answer = await delete(demo, f"{GROUP}/versions/2", why="worse")
    assert answer.status_code == 200
    found = (await demo.client.get(f"{GROUP}/versions/2")).json()
    assert found == answer.json()
    deleted, ends = (datetime.fromisoformat(found[key]) for key in ("deleted_at", "purge_at"))
    assert ends - deleted == timedelta(days=7)
    assert (found["deleted_why"], found["purged_at"], found["freed"]) == ("worse", None, None)
    assert found["deleted_by"].startswith("tok_")
    assert await listed(demo) == [1]
    assert await listed(demo, "?deleted=true") == [2]
    assert (await demo.client.get(f"{GROUP}/latest")).json()["version"] == 1
    assert (await demo.client.get(f"{GROUP}/versions/latest")).json()["version"] == 1


async def test_what_needs_the_files_of_a_deleted_version_is_refused(demo: Service) -> None:
    await delete(demo)
    current = await tag(demo)
    for method, url, body in (
        ("GET", f"{ONE}/files", None),
        ("GET", f"{ONE}/files/{ADAPTER}", None),
        ("POST", f"{ONE}/verify", None),
        ("PATCH", ONE, {"description": "x"}),
        ("PUT", f"{ONE}/approval", {"approval": "approved"}),
        ("PUT", f"{ONE}/hold", {}),
        ("DELETE", ONE, None),
    ):
        answer = await demo.client.request(method, url, json=body, headers=current)
        assert "demo@1 was deleted at 2" in is_problem(answer, 409, "conflict")
    answer = await demo.client.put(f"{GROUP}/aliases/prod", json={"version": 1}, headers=NEW)
    assert "can be restored until" in is_problem(answer, 409, "conflict")


async def test_the_version_that_prod_points_at_is_not_deleted(demo: Service) -> None:
    made = await demo.client.put(f"{GROUP}/aliases/prod", json={"version": 1}, headers=NEW)
    refused = await delete(demo)
    assert is_problem(refused, 409, "conflict") == (
        "demo@1 is not deleted: it is held by alias prod"
    )
    moved = {"If-Match": made.headers["etag"]}
    await demo.client.put(f"{GROUP}/aliases/prod", json={"version": 2}, headers=moved)
    assert (await delete(demo)).status_code == 200


async def test_a_refusal_names_every_holder(demo: Service) -> None:
    await demo.client.put(f"{GROUP}/aliases/prod", json={"version": 1}, headers=NEW)
    async with demo.database.begin() as db:
        package = await service.require_version(db, demo.alice, PackageRef("demo", 1))
        for kind, name in ((HolderKind.deployment, "workshop"), (HolderKind.session, "facts-run")):
            await holds.place(
                db, demo.alice, package, holder_kind=kind, holder_id=f"id-{name}", holder_name=name
            )
    mine = await demo.client.put(f"{ONE}/hold", json={"why": "in the paper"})
    detail = is_problem(await delete(demo), 409, "conflict")
    assert detail == (
        "demo@1 is not deleted: it is held by alias prod, deployment workshop, session facts-run, "
        f"{mine.json()['holder']} (in the paper)"
    )
    rows = (await demo.client.get(f"{ONE}/holds")).json()["data"]
    assert [(row["kind"], row["name"]) for row in rows] == [
        *(("alias", "prod"), ("deployment", "workshop"), ("session", "facts-run")),
        ("person", mine.json()["holder"]),
    ]


async def test_a_restored_version_is_what_it_was(demo: Service) -> None:
    before = (await demo.client.get(ONE)).json()
    await delete(demo, why="by mistake")
    stale = await demo.client.post(f"{ONE}/restore", headers={"If-Match": '"1"'})
    is_problem(stale, 412, "precondition_failed")
    answer = await demo.client.post(f"{ONE}/restore?why=sorry", headers=await tag(demo))
    assert answer.json() == {**before, "revision": 3}
    got = await demo.client.get(f"{ONE}/files/{ADAPTER}")
    assert got.content == BYTES
    assert await listed(demo) == [2, 1]
    assert await events(demo) == [
        ("restored", "deleted", "live", "sorry"),
        ("deleted", "live", "deleted", "by mistake"),
    ]
    again = await demo.client.post(f"{ONE}/restore", headers=await tag(demo))
    assert is_problem(again, 409, "conflict") == "demo@1 is not deleted"


async def test_a_purge_removes_the_files_and_nothing_else(demo: Service) -> None:
    manifest = (await demo.client.get(f"{ONE}/files")).json()
    assert manifest["data"][0]["path"] == ADAPTER
    await delete(demo)
    found = (await purge(demo)).json()
    assert (found["freed"], found["purge_at"], found["digest"] != "") == (len(BYTES), None, True)
    left = await demo.store.keys("")
    assert [key.rpartition("/")[2] for key in left] == ["adapter_config.json"]
    for url in (f"{ONE}/files", f"{ONE}/files/{ADAPTER}"):
        detail = is_problem(await demo.client.get(url), 409, "conflict")
        assert f"its files were purged at {found['purged_at'][:17]}" in detail
    restored = await demo.client.post(f"{ONE}/restore", headers=await tag(demo))
    assert "its files were purged at" in is_problem(restored, 409, "conflict")
    assert await events(demo) == [
        ("purged", "deleted", "purged", ""),
        ("deleted", "live", "deleted", ""),
    ]


async def test_a_purged_parent_stays_in_the_lineage_and_its_number_is_not_given_again(
    demo: Service,
) -> None:
    parent = (await demo.client.get(ONE)).json()
    await demo.publish(parent_id=parent["id"])
    for number in (1, 2):
        await delete(demo, f"{GROUP}/versions/{number}")
        await purge(demo, f"{GROUP}/versions/{number}")
    nodes = (await demo.client.get(f"{GROUP}/versions/3/lineage")).json()["nodes"]
    assert [(node["ref"], node["purged_at"] is None) for node in nodes] == [
        ("demo@1", False),
        ("demo@3", True),
    ]
    await delete(demo, f"{GROUP}/versions/3")
    await demo.publish()
    assert (await demo.client.get(f"{GROUP}/latest")).json()["version"] == 4


async def test_only_an_admin_purges_and_only_what_is_deleted(demo: Service) -> None:
    refused = await demo.client.post(f"{ONE}/purge", headers=await tag(demo))
    is_problem(refused, 403, "forbidden")
    assert is_problem(await purge(demo), 409, "conflict") == "demo@1 is not deleted"
    await delete(demo)
    admin = await demo.token(Role.admin)
    stale = await demo.client.post(f"{ONE}/purge", headers={**admin, "If-Match": '"1"'})
    is_problem(stale, 412, "precondition_failed")
    assert (await demo.client.get(ONE)).json()["purged_at"] is None
    assert len(await demo.store.keys("")) == 2


async def test_a_hold_is_released_by_its_token_or_an_admin(demo: Service) -> None:
    other, admin = await demo.token(Role.member), await demo.token(Role.admin)
    mine = (await demo.client.put(f"{ONE}/hold", json={"why": "mine"})).json()
    assert (await demo.client.put(f"{ONE}/hold", json={"why": "again"})).json() == mine
    theirs = await demo.client.delete(f"{ONE}/hold", headers=other)
    assert "demo@1 is not held by 'tok_" in is_problem(theirs, 404, "not_found")
    url = f"{ONE}/hold?holder={mine['holder']}"
    is_problem(await demo.client.delete(url, headers=other), 403, "forbidden")
    released = await demo.client.delete(f"{url}&why=left", headers=admin)
    assert released.status_code == 204
    assert (await delete(demo)).status_code == 200
    assert await events(demo) == [
        ("deleted", "live", "deleted", ""),
        ("hold", mine["holder"], None, "left"),
        ("hold", None, mine["holder"], "mine"),
    ]


async def test_a_group_goes_with_its_last_file_and_comes_back_with_its_counter(
    demo: Service,
) -> None:
    for number in (1, 2):
        detail = is_problem(await demo.client.delete(GROUP), 409, "conflict")
        left = ", ".join(f"demo@{each}" for each in range(number, 3))
        assert detail.endswith(f"{3 - number} of its versions are not purged: {left}")
        await delete(demo, f"{GROUP}/versions/{number}")
        await purge(demo, f"{GROUP}/versions/{number}")
    assert (await demo.client.delete(GROUP)).json()["deleted_at"] is not None
    assert (await demo.client.get("/v1/groups")).json()["data"] == []
    assert len((await demo.client.get(f"{GROUP}/history")).json()["data"]) == 4
    made = await demo.client.post("/v1/groups", json={"name": "demo", "description": "anew"})
    assert (made.json()["last_version"], made.json()["description"]) == (2, "anew")
    is_problem(await demo.client.post("/v1/groups", json={"name": "demo"}), 409, "conflict")
    await demo.publish()
    assert await listed(demo) == [3]


async def test_without_the_current_etag_nothing_is_deleted(demo: Service) -> None:
    is_problem(await demo.client.delete(ONE), 428, "precondition_required")
    stale = await demo.client.delete(ONE, headers={"If-Match": '"7"'})
    is_problem(stale, 412, "precondition_failed")
    assert await listed(demo) == [2, 1]


@pytest.mark.parametrize(
    ("method", "place", "body"),
    [
        ("DELETE", "/versions/1", None),
        ("POST", "/versions/1/restore", None),
        ("POST", "/versions/1/purge", None),
        ("PUT", "/versions/1/hold", {}),
        ("DELETE", "/versions/1/hold", None),
        ("DELETE", "", None),
    ],
)
async def test_a_viewer_and_another_account_delete_nothing(
    demo: Service, method: str, place: str, body: Any
) -> None:
    async with demo.database.begin() as db:
        bob = await access.create_account(db, name="bob")
    stranger = {**await demo.token(Role.admin, bob.id), "If-Match": '"1"'}
    viewer = {**await demo.token(Role.viewer), "If-Match": '"1"'}
    known, unknown = (f"/v1/groups/{group}{place}" for group in ("demo", "other"))
    told = [
        is_problem(
            await demo.client.request(method, url, json=body, headers=stranger), 404, "not_found"
        )
        for url in (known, unknown)
    ]
    assert told[0].replace("demo", "other") == told[1]
    refused = await demo.client.request(method, known, json=body, headers=viewer)
    is_problem(refused, 403, "forbidden")
    assert await listed(demo) == [2, 1]
