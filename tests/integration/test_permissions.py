"""Every route that the OpenAPI document names, asked by everybody who may not ask it.

A new route is walked by itself. It must say its example, and `furnish` makes what its path names.
"""

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx
import pytest
import pytest_asyncio
from sqlalchemy import select

from registry.access import service as access
from registry.access.actor import Role
from registry.kit.clock import now
from registry.kit.db import Base
from support.furnished import (
    ALIAS,
    DEPLOYMENT,
    GROUP,
    SESSION,
    SETTINGS,
    an_upload,
    furnish,
    promote,
    until_quiet,
)
from support.hosted import Hosted, hosted
from support.tiny import tiny_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOBODYS = {GROUP: "nobodys", SESSION: "nobodys", DEPLOYMENT: "nobodys", ALIAS: "nobodys"}
BODIES: Mapping[tuple[str, str], Any] = {
    ("POST", "/v1/sessions"): {"from_version": f"{GROUP}@1"},
    ("POST", "/v1/groups/{group}/uploads"): an_upload(),
    ("POST", "/v1/groups/{group}/uploads/{upload}/commit"): {},
    ("POST", "/v1/deployments/{name}/promote"): {"version": f"{GROUP}@3"},
    ("PATCH", "/v1/webhooks/{webhook}"): {"description": "mine"},
    ("POST", "/openai/v1/chat/completions"): {
        "model": DEPLOYMENT,
        "messages": [{"role": "user", "content": "hello"}],
    },
    ("POST", "/openai/v1/completions"): {"model": DEPLOYMENT, "prompt": "hello"},
}
OWN = {
    # Whoever asks these makes or sees something of their own account.
    ("POST", "/v1/groups"),
    ("GET", "/v1/groups/{group}/uploads"),
    ("POST", "/v1/groups/{group}/uploads"),
    ("POST", "/v1/gc"),
    ("POST", "/v1/webhooks"),
}
SHARED = "/v1/models"  # base models belong to the installation
DIFF_QUERY = {"against": "1"}


@dataclass(frozen=True)
class Route:
    method: str
    template: str
    path: str
    body: Any
    role: Role

    @property
    def names_a_thing(self) -> bool:
        return "{" in self.template and not self.template.startswith(SHARED)

    @property
    def is_own(self) -> bool:
        return (self.method.replace("HEAD", "GET"), self.template) in OWN


@dataclass(frozen=True)
class Walk:
    service: Hosted
    client: httpx.AsyncClient
    routes: list[Route]
    names: dict[str, str]

    async def ask(
        self, route: Route, headers: Mapping[str, str], path: str | None = None
    ) -> httpx.Response:
        sent = {**headers, "If-Match": '"1"'}
        query = DIFF_QUERY if route.template.endswith("/diff") else None
        return await self.client.request(
            route.method, path or route.path, json=route.body, params=query, headers=sent
        )

    async def status(self, route: Route, headers: Mapping[str, str]) -> int:
        return (await self.ask(route, headers)).status_code

    async def everything(self, account: str) -> dict[str, list[Any]]:
        """Each row of that account."""
        found = {}
        async with self.service.database.read() as db:
            for table in Base.metadata.sorted_tables:
                if "account_id" in table.c:
                    rows = await db.execute(select(table).where(table.c.account_id == account))
                    found[table.name] = sorted(map(repr, rows.all()))
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def walk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Walk]:
    folder = tmp_path_factory.mktemp("service")
    async with hosted(folder / "home", model=tiny_model(folder / "tiny"), **SETTINGS) as service:
        names = await furnish(service)
        await promote(service)
        await until_quiet(service, names["merge_id"])
        async with service.client() as client:
            document = (await client.get("/openapi.json")).json()
        async with httpx.AsyncClient(base_url=service.url, trust_env=False, timeout=60) as client:
            yield Walk(service, client, list(routes(document, names)), names)


def routes(document: dict[str, Any], names: Mapping[str, str]) -> Iterator[Route]:
    for template, methods in document["paths"].items():
        path = filled(template, names)
        for method, said in methods.items():
            if "x-permission" in said:
                body = BODIES.get((method.upper(), template)) or example(document, said)
                role = Role(said["x-permission"])
                yield Route(method.upper(), template, path, body, role)
                if method == "get":
                    yield Route("HEAD", template, path, None, role)


def filled(template: str, names: Mapping[str, str]) -> str:
    return re.sub(r"{(\w+)}", lambda found: name(template, found[1], names), template)


def name(template: str, parameter: str, names: Mapping[str, str]) -> str:
    if parameter == "name":
        kind = template.split("/")[2]
        return {"sessions": SESSION, "deployments": DEPLOYMENT, "models": "tiny"}[kind]
    return {**names, "file": "tokenizer.json"}[parameter]


def example(document: dict[str, Any], said: dict[str, Any]) -> Any:
    content = said.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return None
    schema = content["schema"]
    ref = schema.get("$ref") or next(each["$ref"] for each in schema["anyOf"] if "$ref" in each)
    return document["components"]["schemas"][ref.rpartition("/")[2]]["examples"][0]


async def test_no_token_an_expired_a_revoked_and_an_unknown_one_are_401_everywhere(
    walk: Walk,
) -> None:
    expired = await walk.service.token("default", Role.admin, now() - timedelta(seconds=1))
    async with walk.service.database.begin() as db:
        (owner, *_) = [each for each in await access.accounts(db) if each.name == "default"]
        token, secret = await access.create_token(
            db, account_id=owner.id, name="gone", role=Role.admin
        )
        await access.revoke_token(db, token.id)
    revoked = {"Authorization": f"Bearer {secret}"}
    unknown = {"Authorization": "Bearer my-unknown"}
    basic = {"Authorization": "Basic YTpi"}
    answered = {
        (route.method, route.path, headers.get("Authorization", "")[:9]): found
        for route in walk.routes
        for headers in ({}, expired, revoked, unknown, basic)
        if (found := await walk.status(route, headers)) != 401
    }
    assert len(walk.routes) > 70
    assert answered == {}


async def test_a_role_that_is_too_small_is_403(walk: Walk) -> None:
    viewer = await walk.service.token("default", Role.viewer)
    member = await walk.service.token("default", Role.member)
    answered = {
        (route.method, route.path): found
        for route in walk.routes
        if route.role != Role.viewer
        if (found := await walk.status(route, viewer if route.role == Role.member else member))
        != 403
    }
    assert answered == {}


async def test_anothers_things_answer_exactly_as_what_does_not_exist(walk: Walk) -> None:
    bob = await walk.service.token("bob", Role.admin)
    for route in walk.routes:
        if route.names_a_thing and not route.is_own:
            hers = await walk.ask(route, bob)
            path = nobodys(walk, route.path)
            none = await walk.ask(route, bob, path)
            assert path != route.path
            assert hers.status_code == none.status_code == 404, (route, hers.text, none.text)
            assert nobodys(walk, hers.text) == nobodys(walk, none.text)
            assert kept(hers) == kept(none)


def nobodys(walk: Walk, text: str) -> str:
    """The same with names and ids that nobody has."""
    ids = {each: each[:4] + "0" * 26 for each in walk.names.values() if "_" in each[:4]}
    for hers, none in {**NOBODYS, **ids}.items():
        text = re.sub(rf"\b{hers}\b", none, text)
    return text


def kept(answer: httpx.Response) -> dict[str, str]:
    varying = ("date", "content-length")
    return {name: value for name, value in answer.headers.items() if name not in varying}


async def test_what_names_anothers_things_in_its_body_is_404(walk: Walk) -> None:
    bob = await walk.service.token("bob", Role.admin)
    answered = {
        (route.method, route.path): found
        for route in walk.routes
        if route.method == "POST" and not route.names_a_thing
        if not route.is_own
        if (found := await walk.status(route, bob)) != 404
    }
    assert answered == {}


async def test_lists_hold_nothing_of_anothers(walk: Walk) -> None:
    bob = await walk.service.token("carol", Role.admin)
    ids = [each for each in walk.names.values() if "_" in each[:4]]
    for route in walk.routes:
        if route.method == "GET" and not route.names_a_thing:
            answer = await walk.ask(route, bob)
            assert answer.status_code == 200, route
            found = [hers for hers in (*NOBODYS, *ids) if f'"{hers}"' in answer.text]
            assert found == [], route


async def test_none_of_that_changes_anything_of_anothers(walk: Walk) -> None:
    async with walk.service.database.read() as db:
        accounts = {each.name: each.id for each in await access.accounts(db)}
    viewer = await walk.service.token("default", Role.viewer)
    bob = await walk.service.token("bob", Role.admin)
    before = await walk.everything(accounts["default"])
    for route in walk.routes:
        if route.method not in ("GET", "HEAD"):
            for headers in ({}, bob, *([viewer] if route.role != "viewer" else [])):
                await walk.ask(route, headers)
    assert await walk.everything(accounts["default"]) == before
    assert before["packages"]
    assert before["deployments"]


async def test_the_owner_gets_every_one_of_them(walk: Walk) -> None:
    """So the walks above are refused for who asks, and for nothing else."""
    answered = {
        (route.method, route.path): found
        for route in walk.routes
        if route.method in ("GET", "HEAD")
        if (found := await walk.status(route, walk.service.headers)) != 200
    }
    assert answered == {}
