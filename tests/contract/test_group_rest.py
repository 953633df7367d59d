"""Settings of a group and numbers of its versions, as a client of the registry's REST sees them."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from registry.access import service as access
from registry.access.actor import Role
from registry.kit.db import Database
from support.registry_service import Service, is_problem, registry_service

GROUP = "/v1/groups/demo"
METRICS = f"{GROUP}/versions/1/metrics"


@pytest.fixture
async def service(database: Database) -> AsyncIterator[Service]:
    """Its group `demo` has one version, saved at step 7 with a loss of 0.5."""
    async with registry_service(database) as service:
        await service.publish(step=7, metrics={"loss": 0.5, "tokens": 12.0})
        yield service


async def log(service: Service, numbers: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    answer = await service.client.post(METRICS, json={"metrics": numbers, **more})
    assert answer.status_code == 201, answer.text
    found: list[dict[str, Any]] = answer.json()["data"]
    return found


async def rows(service: Service, query: str = "") -> list[tuple[Any, ...]]:
    found = (await service.client.get(METRICS + query)).json()["data"]
    return [(row["name"], row["step"], row["value"]) for row in found]


async def test_an_admin_sets_that_approval_is_required_and_the_history_tells(
    service: Service,
) -> None:
    tag = (await service.client.get(GROUP)).headers["etag"]
    headers = {**await service.token(Role.admin), "If-Match": tag}
    wish = {"require_approval": True, "why": "audit"}
    answer = await service.client.patch(GROUP, json=wish, headers=headers)
    assert (answer.status_code, answer.json()["require_approval"]) == (200, True)
    assert answer.headers["etag"] == '"2"' == (await service.client.get(GROUP)).headers["etag"]
    (move,) = (await service.client.get(f"{GROUP}/history")).json()["data"]
    assert {key: move[key] for key in ("kind", "from", "to", "role", "why", "version")} == {
        **{"kind": "require_approval", "from": "off", "to": "on", "role": "admin"},
        **{"why": "audit", "version": None},
    }


async def test_a_member_describes_a_group_and_leaves_its_rule_to_admins(service: Service) -> None:
    first, second = {"If-Match": '"1"'}, {"If-Match": '"2"'}
    answer = await service.client.patch(GROUP, json={"description": "d"}, headers=first)
    assert (answer.status_code, answer.json()["description"]) == (200, "d")
    refused = await service.client.patch(GROUP, json={"require_approval": True}, headers=second)
    assert "require_approval: only" in is_problem(refused, 403, "forbidden")
    unchanged = await service.client.patch(GROUP, json={"require_approval": False}, headers=second)
    assert unchanged.status_code == 200
    assert (await service.client.get(f"{GROUP}/history")).json()["data"] == []


async def test_a_group_that_moved_is_not_changed(service: Service) -> None:
    for headers, status, kind in (
        ({}, 428, "precondition_required"),
        ({"If-Match": '"9"'}, 412, "precondition_failed"),
    ):
        answer = await service.client.patch(GROUP, json={"description": "d"}, headers=headers)
        is_problem(answer, status, kind)
    assert (await service.client.get(GROUP)).json()["description"] == ""


async def test_a_number_that_is_logged_later_is_what_the_version_says(service: Service) -> None:
    (made,) = await log(service, {"accuracy": 0.25})
    assert (made["name"], made["step"], made["value"]) == ("accuracy", 7, 0.25)
    await log(service, {"accuracy": 0.5, "loss": 0.125}, step=9)
    shown = (await service.client.get(f"{GROUP}/versions/1")).json()
    assert shown["metrics"] == {"loss": 0.125, "tokens": 12.0, "accuracy": 0.5}
    assert shown["revision"] == 1  # so an If-Match that somebody holds stays right
    (listed,) = (await service.client.get(f"{GROUP}/versions")).json()["data"]
    assert listed["metrics"] == shown["metrics"]


async def test_numbers_are_listed_by_name_in_the_order_they_were_logged(service: Service) -> None:
    for step in (3, 1, 2):
        await log(service, {"a": step / 4, "b": 1.0}, step=step)
    assert await rows(service, "?name=a") == [("a", 3, 0.75), ("a", 1, 0.25), ("a", 2, 0.5)]
    first = (await service.client.get(f"{METRICS}?limit=4")).json()
    rest = (await service.client.get(f"{METRICS}?cursor={first['next_cursor']}")).json()
    assert [row["name"] for row in [*first["data"], *rest["data"]]] == ["a", "b"] * 3
    assert rest["next_cursor"] is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"metrics": {"a": NaN}}', "metrics.a: nan is not a finite number"),
        (b'{"metrics": {"a": 1e999}}', "metrics.a: inf is not a finite number"),
        (b'{"metrics": {"a": true}}', "metrics.a: Input should be a valid number"),
        (b'{"metrics": {"a": false}}', "metrics.a: Input should be a valid number"),
        (b'{"metrics": {"a": "1"}}', "metrics.a: Input should be a valid number"),
        (b'{"metrics": {"a": 1}, "step": true}', "step: Input should be a valid integer"),
        (b'{"metrics": {"": 1}}', "metrics: key ''"),
        (b'{"metrics": {}}', "metrics: "),
        (b'{"metrics": {"a": 1}, "step": -1}', "step: -1 is not between"),
        (b'{"metrics": {"a": 1}, "step": 9223372036854775808}', "step: "),
    ],
)
async def test_what_is_no_number_is_refused_by_field(
    service: Service, body: bytes, said: str
) -> None:
    headers = {"Content-Type": "application/json"}
    answer = await service.client.post(METRICS, content=body, headers=headers)
    assert said in is_problem(answer, 422, "invalid")
    assert await rows(service) == []


async def test_a_version_has_at_most_ten_thousand_numbers(service: Service) -> None:
    numbers = {f"n{number}": number for number in range(198)}
    for _ in range(50):
        await log(service, numbers)
    answer = await service.client.post(METRICS, json={"metrics": numbers})
    assert "more than 10000 numbers" in is_problem(answer, 422, "invalid")
    await log(service, dict(list(numbers.items())[:100]))


async def test_a_version_has_at_most_two_hundred_names(service: Service) -> None:
    """Its save had two."""
    await log(service, {f"n{number}": number for number in range(198)})
    answer = await service.client.post(METRICS, json={"metrics": {"one-more": 1}})
    assert "more than 200 names" in is_problem(answer, 422, "invalid")
    await log(service, {"loss": 0.25})


async def test_numbers_of_anothers_version_are_unknown_and_a_viewers_are_refused(
    service: Service,
) -> None:
    async with service.database.begin() as db:
        bob = await access.create_account(db, name="bob")
    body = {"metrics": {"a": 1}}
    strangers = await service.token(Role.admin, bob.id)
    answer = await service.client.post(METRICS, json=body, headers=strangers)
    is_problem(answer, 404, "not_found")
    is_problem(await service.client.get(METRICS, headers=strangers), 404, "not_found")
    viewers = await service.token(Role.viewer)
    is_problem(await service.client.post(METRICS, json=body, headers=viewers), 403, "forbidden")
    assert await rows(service) == []
