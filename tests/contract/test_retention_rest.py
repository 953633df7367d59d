"""Retention policies as a client of the registry's REST sees them."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from registry.access.actor import Role
from registry.kit.db import Database
from support.registry_service import BYTES, Service, is_problem, registry_service

URL = "/v1/groups/demo/retention"
BEST = {"metric": "loss", "mode": "min", "n": 1}
NOTHING = {"keep_last": None, "keep_every": None, "keep_best": None, "max_age_days": None}


@pytest.fixture
async def demo(database: Database) -> AsyncIterator[Service]:
    """Its group `demo` has four versions, the second of them the best."""
    async with registry_service(database) as service:
        for loss in (0.9, 0.1, 0.5, 0.7):
            await service.publish(metrics={"loss": loss})
        yield service


async def put(service: Service, policy: Any) -> Any:
    return await service.client.put(URL, json=policy, headers=await service.token(Role.admin))


async def test_a_policy_is_set_shown_and_removed(demo: Service) -> None:
    is_problem(await demo.client.get(URL), 404, "not_found")
    made = await put(demo, {"keep_last": 2, "keep_best": BEST})
    assert made.json() == {**NOTHING, "keep_last": 2, "keep_best": BEST}
    assert (await demo.client.get(URL)).json() == made.json()
    gone = await demo.client.delete(URL, headers=await demo.token(Role.admin))
    assert gone.status_code == 204
    is_problem(await demo.client.get(URL), 404, "not_found")


async def test_applying_it_tells_versions_bytes_and_reasons_first(demo: Service) -> None:
    await put(demo, {"keep_last": 1, "keep_best": BEST})
    planned = (await demo.client.post(f"{URL}/apply?dry_run=true")).json()
    assert [(row["ref"], row["action"], row["size"]) for row in planned["versions"]] == [
        *(("demo@4", "keep", len(BYTES)), ("demo@3", "remove", len(BYTES))),
        *(("demo@2", "keep", len(BYTES)), ("demo@1", "remove", len(BYTES))),
    ]
    assert planned["removed"] == {"versions": 2, "bytes": 2 * len(BYTES)}
    assert [row["reason"] for row in planned["versions"][1:3]] == [
        "not kept by: the last 1, the 1 with the smallest loss",
        "the 1 with the smallest loss",
    ]
    done = (await demo.client.post(f"{URL}/apply")).json()
    assert done == {**planned, "dry_run": False}
    rows = (await demo.client.get("/v1/groups/demo/versions?deleted=true")).json()["data"]
    assert [row["version"] for row in rows] == [3, 1]
    assert {row["deleted_why"] for row in rows} == {f"retention: {done['versions'][1]['reason']}"}


async def test_a_policy_is_tried_before_it_is_set(demo: Service) -> None:
    absent = {"metric": "accuracy", "mode": "max", "n": 2}
    policy = {"keep_last": 1, "keep_best": absent}
    plan = (await demo.client.post(f"{URL}/apply?dry_run=true", json=policy)).json()
    assert plan["removed"] == {"versions": 3, "bytes": 3 * len(BYTES)}
    assert plan["warning"] == "keep_best.metric: no version has 'accuracy'"
    is_problem(await demo.client.get(URL), 404, "not_found")
    refused = await demo.client.post(f"{URL}/apply", json=policy)
    assert "dry_run=true" in is_problem(refused, 422, "invalid")
    rows = (await demo.client.get("/v1/groups/demo/versions")).json()["data"]
    assert len(rows) == 4


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({}, "retention"),
        (NOTHING, "retention"),
        ({"keep_last": 0}, "keep_last"),
        ({"keep_last": "x"}, "keep_last"),
        ({"keep_best": {**BEST, "mode": "most"}}, "keep_best.mode"),
        ({"keep_best": {**BEST, "metric": 'a"'}}, "keep_best.metric"),
        ({"keep_first": 1}, "keep_first"),
    ],
)
async def test_a_policy_that_makes_no_sense_is_refused_by_the_field(
    demo: Service, policy: Any, field: str
) -> None:
    assert is_problem(await put(demo, policy), 422, "invalid").startswith(f"{field}: ")
    is_problem(await demo.client.get(URL), 404, "not_found")


async def test_only_an_admin_sets_a_policy(demo: Service) -> None:
    is_problem(await demo.client.put(URL, json={"keep_last": 1}), 403, "forbidden")
    is_problem(await demo.client.delete(URL), 403, "forbidden")
    await put(demo, {"keep_last": 1})
    viewer = await demo.token(Role.viewer)
    is_problem(await demo.client.post(f"{URL}/apply", headers=viewer), 403, "forbidden")
