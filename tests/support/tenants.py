"""Two accounts with one of everything each, and every place of the wire that may name a thing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx

from registry.access.actor import Role
from registry.events import service as events
from support.furnished import Names, an_upload, furnish, promote, until_quiet
from support.hosted import Hosted

HERS = Names("alice", "alices-group", "alices-session", "alices-model", "alices-alias")
HIS = Names("bob", "bobs-group", "bobs-session", "bobs-model", "bobs-alias")
Document = Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """Where a request says something: in its path, query, headers or body."""

    method: str
    template: str
    where: str
    name: str

    @property
    def route(self) -> str:
        return f"{self.method} {self.template}"


@dataclass(frozen=True)
class Tenant:
    """`things` are what this account's things are called, by kind."""

    names: Names
    headers: dict[str, str]
    things: dict[str, str]


async def settle(service: Hosted, names: Names, *, promotions: int) -> Tenant:
    """An account with at least two rows in each of its lists, and a version for each promotion."""
    headers = await service.token(names.account, Role.admin)
    things = await furnish(service, names, headers)
    await promote(service, replace(names, deployment=f"{names.deployment}-2"))
    for _ in range(promotions):
        await promote(service, names)
    await until_quiet(service, things["merge_id"], headers)
    async with service.client(headers) as client:
        things |= await _more(client, names, things)
    async with service.database.begin() as db:
        await events.publish(db)
    async with service.client(headers) as client:
        things["event"] = (await _json(client, "GET", "/v1/events"))["data"][0]["id"]
        newest = await _json(client, "GET", f"/v1/groups/{names.group}/latest")
        things["newest"] = str(newest["version"])
    return Tenant(names, headers, things)


async def _more(
    client: httpx.AsyncClient, names: Names, things: Mapping[str, str]
) -> dict[str, str]:
    group, session = f"/v1/groups/{names.group}", f"/v1/sessions/{names.session}"
    one = f"{group}/versions/1"
    shown = await _json(client, "GET", session)
    wish = {"number": 3, "token": "t3", "body": {"type": "save", "kind": "sampler"}}
    saved = await _json(client, "POST", f"{session}/operations?wait=20", wish)
    about = {"base_model": "tiny", "name": f"{names.session}-2", "group": names.group}
    await _json(client, "POST", "/v1/sessions", about)
    await _json(client, "POST", "/v1/groups", {"name": f"{names.group}-2"})
    await _json(client, "POST", f"{group}/uploads", {**an_upload(), "token": "u2"})
    await _json(client, "POST", "/v1/webhooks", {"url": "http://127.0.0.1:9/"})
    await _json(client, "POST", f"/v1/webhooks/{things['webhook']}/test")
    for score in (0.5, 0.25):
        metric = {"metrics": {f"{names.account}s-metric": score}, "step": 1}
        await _json(client, "POST", f"{one}/metrics", metric)
    again = {"If-None-Match": "*"}
    await _json(client, "PUT", f"{group}/aliases/{names.alias}-2", {"version": 1}, again)
    tag = {"tags": [f"{names.account}s-tag"], "description": f"{names.account}s-text"}
    edited = await _json(
        client, "PATCH", one, tag, {"If-Match": f'"{await _revision(client, one)}"'}
    )
    await _json(client, "PUT", f"{one}/hold", {"why": "mine"})
    holds = (await _json(client, "GET", f"{one}/holds"))["data"]
    (person,) = [each["holder"] for each in holds if each["kind"] == "person"]
    return {
        **{"session": names.session, "session_id": shown["id"], "deployment": names.deployment},
        **{"weights": saved["result"]["weights"], "package": edited["id"], "holder": person},
        **{"ref": f"{names.group}@1", "merged": f"{names.group}@3"},
        **{"aliased": f"{names.group}:{names.alias}", "tag": tag["tags"][0]},
        **{"text": str(tag["description"]), "metric": f"{names.account}s-metric"},
    }


async def _revision(client: httpx.AsyncClient, path: str) -> int:
    return int((await _json(client, "GET", path))["revision"])


async def _json(
    client: httpx.AsyncClient,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> Any:
    answer = await client.request(method, path, json=body, headers=headers)
    assert answer.is_success, (method, path, answer.text)
    return answer.json()


def places(document: Document) -> Iterator[Place]:
    """All that the OpenAPI document knows of."""
    for template, methods in document["paths"].items():
        for method, said in methods.items():
            if "x-permission" not in said:
                continue
            found = {(each["in"], each["name"]) for each in said.get("parameters", ())}
            for content in said.get("requestBody", {}).get("content", {}).values():
                found |= {("body", name) for name in _fields(document, content["schema"])}
            for where, name in sorted(found):
                yield Place(method.upper(), template, where, name)


def _fields(
    document: Document, schema: Mapping[str, Any], at: str = "", seen: tuple[str, ...] = ()
) -> Iterator[str]:
    """Every field, however deep, as `body.data[].tokens`."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name not in seen:
            yield from _fields(document, document["components"]["schemas"][name], at, (*seen, name))
    for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from _fields(document, each, at, seen)
    if "items" in schema:
        yield from _fields(document, schema["items"], f"{at}[]", seen)
    for name, inner in schema.get("properties", {}).items():
        inside = f"{at}.{name}" if at else name
        yield inside
        yield from _fields(document, inner, inside, seen)
