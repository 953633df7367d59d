"""Wherever a request can name a thing, another account's answers exactly as one that is not there.

A route, parameter or field that is new fails here until it is said what it may name.
"""

import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
import pytest_asyncio
from sqlalchemy import select

from registry.access.actor import Role
from registry.access.model import Account
from registry.kit.db import Base
from support.furnished import SETTINGS, an_upload, promote
from support.hosted import Hosted, hosted
from support.tenants import HERS, HIS, Place, Tenant, places, settle
from support.tiny import tiny_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

IDS = {"session_id", "weights", "package", "holder", "event", "operation_id", "merge_id"}
IDS |= {"upload", "webhook", "delivery"}

# What a place may name: the kinds of things that are tried there. By route where that says it.
THINGS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("path", "group"): ("group",),
    ("path", "alias"): ("alias",),
    ("path", "version"): ("newest", "alias"),
    ("path", "upload"): ("upload", "package"),
    ("path", "webhook"): ("webhook",),
    ("path", "delivery"): ("delivery", "event"),
    ("path", "operation_id"): ("operation_id",),
    ("path", "merge_id"): ("merge_id", "operation_id"),
    ("path", "model"): ("deployment", "session"),
    ("query", "after"): ("event",),
    ("query", "against"): ("ref", "aliased"),
    ("query", "alias"): ("alias",),
    ("query", "session"): ("session_id",),
    ("query", "version"): ("newest",),
    ("query", "tag"): ("tag",),
    ("query", "text"): ("text",),
    ("query", "holder"): ("holder", "session_id", "merge_id"),
    ("query", "cursor"): ("cursor",),
    ("body", "from_version"): ("ref", "aliased"),
    ("body", "parent"): ("ref",),
    ("body", "session"): ("session_id", "session"),
    ("body", "source"): ("ref", "aliased", "merged"),
    ("body", "weights"): ("weights", "package", "session_id"),
}
BY_ROUTE: Mapping[tuple[str, str, str], tuple[str, ...]] = {
    ("/v1/sessions/{name}", "path", "name"): ("session", "session_id"),
    ("/v1/deployments/{name}", "path", "name"): ("deployment",),
    ("/v1/models/{name}", "path", "name"): (),
    ("/v1/deployments/{name}/promote", "body", "version"): ("merged", "aliased"),
    ("/v1/deployments/{name}/promote", "path", "name"): (),
    ("/v1/groups/{group}/aliases/{alias}", "body", "version"): ("newest",),
    ("/openai/v1/", "body", "model"): ("deployment", "session", "session_id", "ref", "aliased"),
    ("/v1/groups/{group}/versions/{version}/metrics", "query", "name"): ("metric",),
}
# What names nothing that an account has, or is tried in the tests of names below.
PLAIN: Mapping[str, str] = {
    "path": "file number path",
    "query": """approval at bucket_width created_after created_before deleted dry_run end group_by
        kind limit redirect stage start state status tensors type wait why""",
    "header": "Idempotency-Key if-match if-none-match",
    "body": """approval base_model best_of body description deterministic digest dry_run enabled
        expires_at files group keep_best keep_every keep_last kind logprobs lora max_age_days
        max_completion_tokens max_tokens messages metadata metrics model n name number older_than_s
        prompt prompt_logprobs protected require_approval seed stage step stop stream stream_options
        tags temperature token tool_choice tools top_k top_p types url version why with_optimizer
        """,
}
OWN = {"GET /v1/groups/{group}/uploads", "POST /v1/groups/{group}/uploads"}
"""A group that is not there has no uploads, and may be begun."""
REFUSED: Mapping[tuple[str, str, str], set[int]] = {
    ("GET", "query", "after"): {422},
    ("POST", "body", "parent"): {422},
    ("PUT", "path", "alias"): {412},  # one that is not there has another revision
}
"""Where what is not there is answered by something else than 404."""

PROMPT = {"dtype": "int64", "data": [5, 6]}
CHAT = {"messages": [{"role": "user", "content": "hello"}]}
BODIES: Mapping[tuple[str, str], Any] = {
    ("POST", "/v1/groups/{group}/uploads"): {**an_upload(), "token": "u9"},
    ("POST", "/v1/sessions"): {},
    ("POST", "/v1/samples"): {"prompt": PROMPT, "token": "s9", "max_tokens": 1},
    ("POST", "/openai/v1/chat/completions"): CHAT,
    ("POST", "/openai/v1/completions"): {"prompt": "hello"},
    ("PATCH", "/v1/webhooks/{webhook}"): {"description": "mine"},
}


@dataclass(frozen=True)
class World:
    service: Hosted
    client: httpx.AsyncClient
    document: Mapping[str, Any]
    hers: Tenant
    his: Tenant

    async def ask(self, place: Place, value: str, tenant: Tenant) -> httpx.Response:
        """A request that is right for this tenant, but for what this place says."""
        path = place.template
        for name in re.findall(r"{(\w+)}", path):
            own = value if (place.where, place.name) == ("path", name) else ""
            path = path.replace(f"{{{name}}}", own or called(tenant, place.template, name))
        query = {"against": "1"} if path.endswith("/diff") else {}
        if place.where == "query":
            query[place.name] = value
        return await self.client.request(
            place.method,
            path,
            params=query,
            json=self._body(place, value),
            headers={**tenant.headers, "If-Match": '"1"'},
        )

    def _body(self, place: Place, value: str) -> Any:
        said = self.document["paths"][place.template][place.method.lower()]
        if "application/json" not in said.get("requestBody", {}).get("content", {}):
            return None
        body = BODIES.get((place.method, place.template))
        if body is None:
            body = example(self.document, said)
        said_here = int(value) if value.isdigit() else value
        return {**body, place.name: said_here} if place.where == "body" else body


def called(tenant: Tenant, template: str, parameter: str) -> str:
    if parameter == "name":
        kind = template.split("/")[2]
        return {"models": "tiny", "sessions": tenant.names.session}.get(
            kind, tenant.names.deployment
        )
    return {**tenant.things, "file": "tokenizer.json"}[parameter]


def example(document: Mapping[str, Any], said: Mapping[str, Any]) -> Any:
    schema = said["requestBody"]["content"]["application/json"]["schema"]
    ref = schema.get("$ref") or next(each["$ref"] for each in schema["anyOf"] if "$ref" in each)
    return document["components"]["schemas"][ref.rpartition("/")[2]].get("examples", [{}])[0]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("service")
    async with hosted(folder / "home", model=tiny_model(folder / "tiny"), **SETTINGS) as service:
        hers = await settle(service, HERS, promotions=3)
        his = await settle(service, HIS, promotions=2)
        assert hers.things["newest"] > his.things["newest"]
        async with httpx.AsyncClient(base_url=service.url, trust_env=False, timeout=60) as client:
            document = (await client.get("/openapi.json")).json()
            yield World(service, client, document, hers, his)


def kinds(place: Place) -> tuple[str, ...] | None:
    """What may be named there; nothing is said of a place that nobody has thought of."""
    for (route, where, name), found in sorted(BY_ROUTE.items(), key=lambda each: -len(each[0][0])):
        if place.template.startswith(route) and (place.where, place.name) == (where, name):
            return found
    if (place.where, place.name) in THINGS:
        return THINGS[place.where, place.name]
    return () if re.split(r"[.\[]", place.name)[0] in PLAIN[place.where].split() else None


def unknown(kind: str, hers: str) -> str:
    """What nobody has, of the same form."""
    if kind in IDS:
        return hers[:4] + "0" * 26
    if kind == "newest":
        return "999"
    return hers.replace("alices", "nobody")


async def test_it_is_said_of_every_place_what_it_may_name(world: World) -> None:
    found = list(places(world.document))
    assert len(found) > 250
    assert [each for each in found if kinds(each) is None] == []


async def test_another_accounts_thing_answers_as_an_unknown_one_wherever_it_is_named(
    world: World,
) -> None:
    tried, different = set(), []
    for place in places(world.document):
        for kind in kinds(place) or ():
            if kind == "cursor" or (place.name == "group" and place.route in OWN):
                continue
            hers = world.hers.things[kind]
            none = unknown(kind, hers)
            found, nothing = [await world.ask(place, each, world.his) for each in (hers, none)]
            same = anonymous(found.text, hers, none) == anonymous(nothing.text, hers, none)
            if not (same and kept(found) == kept(nothing) and is_nothing(place, kind, found)):
                different.append((place, kind, found.status_code, found.text, nothing.text))
            tried.add(place.route)
    assert different == []
    assert len(tried) > 60


def anonymous(text: str, hers: str, none: str) -> str:
    """Without what was asked for."""
    for each in (hers, none, "alices", "nobody"):
        text = text.replace(each, "")
    return text


def kept(answer: httpx.Response) -> dict[str, Any]:
    varying = ("date", "content-length")
    headers = {name: value for name, value in answer.headers.items() if name not in varying}
    return {"status": answer.status_code, **headers}


def is_nothing(place: Place, kind: str, answer: httpx.Response) -> bool:
    """Not found; of a filter, nothing that fits."""
    if answer.status_code == 200:
        said = answer.json()
        rows = [row for each in said.get("data", ()) for row in each.get("results", [each])]
        return place.where == "query" and not rows and not any(said.get("tokens", {}).values())
    if (place.where, place.name, kind) == ("path", "version", "alias"):
        return answer.status_code in (404, 422)  # some take numbers only
    return answer.status_code in REFUSED.get((place.method, place.where, place.name), {404})


async def test_an_operation_that_names_anothers_thing_fails_as_one_that_names_nothing(
    world: World,
) -> None:
    number = 3
    for wish, field, kind in (
        ({"type": "load"}, "source", "ref"),
        ({"type": "load"}, "source", "aliased"),
        ({"type": "save", "kind": "adapter"}, "group", "group"),
    ):
        hers = world.hers.things[kind]
        failures = []
        for value in (hers, unknown(kind, hers)):
            number += 1
            sent = {"number": number, "token": f"t{number}", "body": {**wish, field: value}}
            path = f"/v1/sessions/{HIS.session}/operations?wait=20"
            answer = await world.client.post(path, json=sent, headers=world.his.headers)
            assert answer.json()["status"] == "failed", answer.text
            failures.append(anonymous(str(answer.json()["error"]), hers, unknown(kind, hers)))
        assert failures[0] == failures[1]


async def test_a_cursor_of_another_account_is_none(world: World) -> None:
    lists = [each for each in places(world.document) if each.name == "cursor"]
    for place in lists:
        first = await world.ask(replace(place, name="limit"), "1", world.hers)
        cursor = first.json().get("next_cursor") or first.json().get("next_page")
        assert cursor, (place.route, first.text)
        assert (await world.ask(place, cursor, world.hers)).status_code == 200, place.route
        found, nothing = [await world.ask(place, each, world.his) for each in (cursor, "x")]
        assert (found.status_code, found.text) == (400, nothing.text), place.route
    assert len(lists) > 12


async def test_an_idempotency_key_is_one_for_each_account(world: World) -> None:
    for tenant in (world.hers, world.his):
        for name in ("by-key", "by-key-too"):
            key = {"Idempotency-Key": f"key-{name}"}
            sent = {"name": name}
            made = await world.client.post(
                "/v1/groups", json=sent, headers={**tenant.headers, **key}
            )
            assert made.status_code == 201, made.text
    other = {**world.his.headers, "Idempotency-Key": "hers-alone"}
    hers = {**world.hers.headers, "Idempotency-Key": "hers-alone"}
    for headers, name in ((hers, "one-name"), (other, "another-name")):
        made = await world.client.post("/v1/groups", json={"name": name}, headers=headers)
        assert (made.status_code, made.json()["name"]) == (201, name)


async def test_a_name_a_token_and_a_number_that_another_account_has_are_free(world: World) -> None:
    carol = await world.service.token("carol", Role.admin)
    hers = world.hers.names
    before = await rows_of(world, HERS.account)
    session = {"base_model": "tiny", "name": hers.session, "group": hers.group}
    save = {"number": 1, "token": "t1", "body": {"type": "save", "kind": "adapter"}}
    sample = {"model": "tiny", "prompt": PROMPT, "token": "shared", "max_tokens": 1}
    asked: list[tuple[str, str, Any]] = [
        ("POST", "/v1/groups", {"name": hers.group}),
        ("POST", "/v1/sessions", session),
        ("POST", f"/v1/sessions/{hers.session}/operations?wait=20", save),
        ("POST", f"/v1/groups/{hers.group}/uploads", an_upload()),
        ("PUT", f"/v1/groups/{hers.group}/aliases/{hers.alias}", {"version": 1}),
        ("POST", "/v1/samples", sample),
    ]
    for method, path, body in asked:
        headers = {**carol, "If-None-Match": "*"}
        answer = await world.client.request(method, path, json=body, headers=headers)
        assert answer.is_success, (path, answer.text)
        assert "failed" not in answer.text
    await promote(world.service, replace(hers, account="carol"))
    assert await rows_of(world, HERS.account) == before


async def test_no_row_refers_to_a_row_of_another_account(world: World) -> None:
    """After all of the above; over every table, so that a new one is not forgotten."""
    pairs = [
        (table, column, key.column.table)
        for table in Base.metadata.sorted_tables
        for column in table.columns
        for key in column.foreign_keys
        if "account_id" in table.c and "account_id" in key.column.table.c
    ]
    async with world.service.database.read() as db:
        for table, column, other in pairs:
            owners = other.alias()
            query = (
                select(table)
                .join(owners, owners.c.id == column)
                .where(owners.c.account_id != table.c.account_id)
            )
            assert (await db.execute(query)).all() == [], (table.name, column.name)
    assert len(pairs) > 8


async def test_an_object_is_of_one_account_and_no_answer_has_its_key(world: World) -> None:
    async with world.service.database.read() as db:
        accounts = set(await db.scalars(select(Account.id)))
    keys = await world.service.store.keys("")
    assert {key.partition("/")[0] for key in keys} <= accounts
    assert len({key.partition("/")[0] for key in keys}) >= 3
    for place in {replace(each, where="", name="") for each in places(world.document)}:
        if place.method == "GET":
            answer = await world.ask(place, "", world.hers)
            assert answer.status_code == 200, (place.route, answer.text)
            assert not [each for each in accounts if f"{each}/" in answer.text], place.route


async def rows_of(world: World, account: str) -> dict[str, list[str]]:
    found = {}
    async with world.service.database.read() as db:
        owner = await db.scalar(select(Account.id).where(Account.name == account))
        for table in Base.metadata.sorted_tables:
            if "account_id" in table.c:
                rows = await db.execute(select(table).where(table.c.account_id == owner))
                found[table.name] = sorted(map(repr, rows.all()))
    return found
