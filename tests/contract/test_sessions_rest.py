"""Sessions, operations and samples over REST: what the wire refuses, and how it says so."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
import pytest_asyncio

from registry.access.actor import Role
from registry.kit.clock import now
from session import wire
from support.hosted import Hosted, hosted
from support.tiny import tiny_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

GOOD = {"group": "g1", "name": "s1", "version": "1", "path": "x", "model": "s1", "alias": "prod"}
JUNK = ("x", "%00", "%ff", "..%2f", "a" * 3000, "-1", str(2**63), "%F0%9F%A6%8A", "NaN", "g1")
BODIES = (
    *(b"", b"{}", b"[]", b"null", b"{", b"\xff\xfe", b"[" * 5000, b'{"name":"\\ud800"}'),
    *(b'{"name":"g\\u0000","base_model":"tiny"}', b'{"base_model":"tiny","group":"\\u0000"}'),
    b'{"base_model":"tiny\\u0000"}',
    b'{"base_model":"tiny","lora":{"rank":99999999999999999999999}}',
    b'{"base_model":"tiny","lora":{"alpha":NaN}}',
    b'{"base_model":"tiny","from_version":"g1@99999999999999999999"}',
    b'{"step":99999999999999999999999,"metrics":{"a":1}}',
    b'{"step":1,"metrics":{"a\\u0000":1}}',
    b'{"step":1,"metrics":{"a":NaN}}',
    *(b'{"name":"x","description":"\\u0000"}', b'{"version":"\\u0000"}', b'{"version":"g1@1"}'),
    b'{"model":"s1\\u0000","messages":[{"role":"user","content":"x"}]}',
    b'{"model":"s1","prompt":[1,99999999999999999999]}',
    b'{"model":"s1","prompt":"x","max_tokens":99999999999999999}',
    b'{"model":"s1","prompt":"x","seed":99999999999999999999999}',
    b'{"number":99999999999999999999,"token":"a","body":{"type":"clear_gradient"}}',
    b'{"number":1,"token":"\\u0000","body":{"type":"clear_gradient"}}',
    b'{"token":"t\\u0000","session":"s1","prompt":{"dtype":"int64","data":[5]}}',
    b'{"token":"t1","session":"s1","prompt":{"dtype":"int64","data":[1e300]}}',
    b'{"token":"t2","session":"s1","prompt":{"dtype":"int64","data":[5]},"max_tokens":1%s}'
    % (b"0" * 30),
    b'{"token":"t3","session":"s1","prompt":{"dtype":"int64","data":[5]},"stop":[1%s]}'
    % (b"0" * 30),
    *(b'{"approval":"approved","why":"\\u0000"}', b'{"approval":"\\u0000"}', b'{"version":1}'),
    *(b'{"version":99999999999999999999}', b'{"version":1,"why":"\\u0000"}'),
    *(b'{"tags":["\\u0000"]}', b'{"tags":["\\ud800"]}', b'{"description":"\\u0000"}'),
    *(b'{"expires_at":"0001-01-01T00:00:00+14:00"}', b'{"expires_at":1e300}', b'{"stage":""}'),
    b'{"token":"t4","weights":"\\u0000","prompt":{"dtype":"int64","data":[5]}}',
    b'{"token":"t5","session":"s\\u0000","prompt":{"dtype":"int64","data":[5]}}',
)


HEADERS = ("*", '"1"', '"1", "2"', 'W/"1"', '"-1"', '"99999999999999999999"', '"\xb2"', "")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hosted]:
    async with hosted(tmp_path_factory.mktemp("service") / "home", model=model) as service:
        yield service


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(service: Hosted) -> AsyncIterator[httpx.AsyncClient]:
    """It has the running session `s1`, which saves to the group `g1` and is never changed."""
    async with service.client() as client:
        await start(client)
        yield client


async def start(client: httpx.AsyncClient, name: str = "s1", **more: Any) -> dict[str, Any]:
    wanted = {"base_model": "tiny", "name": name, "group": "g1", "lora": {"rank": 4}, **more}
    created = await client.post("/v1/sessions", json=wanted)
    assert created.status_code == 201, created.text
    shown: dict[str, Any] = (await client.get(f"/v1/sessions/{name}?wait=20")).json()
    return shown


def is_problem(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return str(answer.json()["detail"])


# Fuzz: every route that the OpenAPI document names.


async def requests(client: httpx.AsyncClient) -> list[tuple[str, str, dict[str, Any]]]:
    paths = (await client.get("/openapi.json")).json()["paths"]
    every = [(p, m, o) for p, methods in paths.items() for m, o in methods.items()]
    return [each for path, method, form in every for each in junk_for(path, method, form)]


def junk_for(path: str, method: str, form: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    known = re.sub(r"{(\w+)(?::path)?}", lambda found: GOOD.get(found[1], "x"), path)
    takes_body = method in ("post", "put", "patch")
    body: dict[str, Any] = {"json": {}} if takes_body else {}
    if "{" in path:
        yield from ((method, re.sub(r"{[^}]+}", junk, path), body) for junk in JUNK)
    for query in (p["name"] for p in form.get("parameters", ()) if p["in"] == "query"):
        yield from ((method, f"{known}?{query}={junk}", body) for junk in JUNK)
    for name in (p["name"] for p in form.get("parameters", ()) if p["in"] == "header"):
        junk_headers = (*HEADERS, *JUNK)
        yield from (
            (method, known, {**body, "headers": {name: v.encode("latin-1")}}) for v in junk_headers
        )
    if takes_body and not path.endswith("/stop"):
        for body_bytes in BODIES:
            json = {"content-type": "application/json", "if-match": '"1"'}
            yield method, known, {"content": body_bytes, "headers": json}
        packed = {"content-type": wire.MEDIA}
        yield from (
            (method, known, {"content": c, "headers": packed}) for c in (b"\x91" * 9999, b"\xc1")
        )


async def test_no_junk_makes_a_route_fail(client: httpx.AsyncClient) -> None:
    everything = await requests(client)
    assert len(everything) > 500
    for method, url, given in everything:
        answer = await client.request(method, url, **given)
        told = f"{method} {url[:99]} {given} {answer.status_code} {answer.text[:300]}"
        assert answer.status_code < 500, told
        assert "Traceback" not in answer.text, told
        if answer.status_code >= 400 and url.startswith("/v1"):
            assert answer.headers["content-type"] == "application/problem+json", told


# Who may ask.


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer my-guess", "Basic x", "Bearer \xff"])
async def test_every_route_wants_a_token(service: Hosted, header: str) -> None:
    async with httpx.AsyncClient(base_url=service.url, trust_env=False) as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
        for path, methods in paths.items():
            for method in methods:
                if path == "/healthz":
                    continue
                given = [(b"Authorization", header.encode("latin-1"))]
                answer = await client.request(method, path, headers=given)
                assert answer.status_code == 401, path


async def test_expired_and_viewing_tokens_are_told_what_they_lack(service: Hosted) -> None:
    expired = await service.token("bob", expires_at=now() - timedelta(seconds=1))
    viewer = await service.token("bob", Role.viewer)
    async with service.client() as client:
        answer = await client.get("/v1/sessions", headers=expired)
        assert "expired" in is_problem(answer, 401)
        assert (await client.get("/v1/sessions", headers=viewer)).status_code == 200
        for path in ("/v1/sessions", "/v1/sessions/x/stop", "/v1/samples", "/v1/groups"):
            answer = await client.post(path, headers=viewer, json={"base_model": "x", "name": "x"})
            assert "needs a token with the role member" in is_problem(answer, 403)


async def test_an_unknown_route_and_a_wrong_method_are_problems(client: httpx.AsyncClient) -> None:
    assert "Not Found" in is_problem(await client.get("/v1/nothing"), 404)
    assert "Method Not Allowed" in is_problem(await client.put("/v1/sessions"), 405)


# Creating sessions.


@pytest.mark.parametrize(
    ("wanted", "status", "named"),
    [
        ({"base_model": "nope"}, 404, "this service has: tiny"),
        ({}, 422, "base_model"),
        ({"base_model": 5}, 422, "base_model"),
        ({"base_model": "tiny", "lora": {"rank": "x"}}, 422, "lora.rank"),
        ({"base_model": "tiny", "lora": {"rank": 0}}, 422, "lora.rank"),
        ({"base_model": "tiny", "lora": {"rank": 257}}, 422, "lora.rank"),
        ({"base_model": "tiny", "lora": {"alpha": -1}}, 422, "lora.alpha"),
        ({"base_model": "tiny", "lora": {"targets": []}}, 422, "lora.targets"),
        ({"base_model": "tiny", "lora": {"seed": -1}}, 422, "lora.seed"),
        ({"base_model": "tiny", "name": "-"}, 422, "name"),
        ({"base_model": "tiny", "name": "n" * 64}, 422, "name"),
        ({"base_model": "tiny", "name": "zoë"}, 422, "name"),
        ({"base_model": "tiny", "group": "../up"}, 422, "name"),
        ({"base_model": "tiny", "metadata": {"k": 1}}, 422, "metadata.k"),
        ({"base_model": "tiny", "metadata": {"k": "v" * 1025}}, 422, "metadata.k"),
        ({"base_model": "tiny", "rnak": 4}, 422, "rnak"),
        ({"from_version": "g1@7"}, 404, "g1@7"),
        ({"from_version": "nope@1"}, 404, "nope"),
        ({"from_version": "g1"}, 422, "GROUP@VERSION"),
        ({"base_model": "tiny", "name": "s1"}, 409, "s1"),
    ],
)
async def test_a_bad_session_is_refused_by_field(
    client: httpx.AsyncClient, wanted: dict[str, Any], status: int, named: str
) -> None:
    assert named in is_problem(await client.post("/v1/sessions", json=wanted), status)


async def test_of_many_sessions_with_one_name_one_is_made(client: httpx.AsyncClient) -> None:
    wanted = {"base_model": "tiny", "name": "same"}
    made = await asyncio.gather(*(client.post("/v1/sessions", json=wanted) for _ in range(8)))
    assert sorted(answer.status_code for answer in made) == [201, *[409] * 7]


async def test_sessions_are_paged_and_filtered(service: Hosted) -> None:
    async with service.client(await service.token("pager")) as client:
        await start(client, "s1")
        await start(client, "s2")
        first = (await client.get("/v1/sessions?limit=1")).json()
        rest = (await client.get(f"/v1/sessions?limit=1&cursor={first['next_cursor']}")).json()
        assert [row["name"] for row in first["data"] + rest["data"]] == ["s2", "s1"]
        assert rest["next_cursor"] is None
        assert (await client.get("/v1/sessions?status=stopped")).json()["data"] == []
        url = f"/v1/sessions?status=stopped&cursor={first['next_cursor']}"
        assert "cursor" in is_problem(await client.get(url), 400)


# Submitting operations.


def submission(number: Any = 1, token: Any = "t", body: Any = None, **more: Any) -> dict[str, Any]:
    return {"number": number, "token": token, "body": body or {"type": "clear_gradient"}, **more}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (submission(number="x"), "$.number"),
        (submission(number=-1), "number"),
        (submission(number=2**31), "number"),
        (submission(token=""), "token"),
        (submission(token="t" * 129), "token"),
        (submission(version=2), "version 2"),
        (submission(body={"type": "dance"}), "dance"),
        (submission(body={"type": "create", "lora": {}}), "body"),
        (submission(body={"type": "optim_step", "learning_rate": "high"}), "learning_rate"),
        (submission(body={"type": "optim_step", "momentum": 1}), "momentum"),
        (submission(body={"type": "save", "kind": "pickle"}), "kind"),
        (submission(body={"type": "forward", "data": [{"tokens": 1}]}), "data[0].tokens"),
        (submission(surplus=1), "surplus"),
        ({"number": 1}, "token"),
    ],
)
@pytest.mark.parametrize("media", ["application/json", wire.MEDIA])
async def test_a_malformed_submission_names_the_field(
    client: httpx.AsyncClient, media: str, given: dict[str, Any], named: str
) -> None:
    pack = msgspec.json.encode if media == "application/json" else msgspec.msgpack.encode
    answer = await client.post(
        "/v1/sessions/s1/operations", content=pack(given), headers={"content-type": media}
    )
    assert named in is_problem(answer, 400)
    assert (await client.get("/v1/sessions/s1")).json()["last_number"] == 0


async def test_json_is_enough_to_train(client: httpx.AsyncClient) -> None:
    await start(client, "json")
    tokens = {"dtype": "int64", "data": [5, 6, 7]}
    datum = {"tokens": tokens, "inputs": {"target_tokens": tokens}}
    bodies = ({"type": "forward_backward", "data": [datum]}, {"type": "optim_step"})
    for number, body in enumerate(bodies, 1):
        given = submission(number, f"t{number}", body)
        accepted = (await client.post("/v1/sessions/json/operations", json=given)).json()
        ended = (await client.get(f"/v1/operations/{accepted['id']}?wait=20")).json()
        assert ended["status"] == "completed", ended
    assert ended["result"]["metrics"]["step"] == 1
    assert ended["result"]["metrics"]["loss"] == pytest.approx(3.0)


async def test_a_body_over_the_limit_is_refused_before_it_is_read(
    model: Path, tmp_path: Path
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 100

    small = hosted(tmp_path / "home", model=model, limits={"body_bytes": 1000})
    async with small as service, service.client() as client:
        await start(client)
        for content in (b" " * 1001, pieces()):
            answer = await client.post("/v1/sessions/s1/operations", content=content)
            assert "1000 bytes" in is_problem(answer, 413)
        answer = await client.post("/openai/v1/completions", json={"prompt": "x" * 2000})
        assert (answer.status_code, answer.json()["error"]["param"]) == (413, "body")
        fine = await client.post("/v1/sessions/s1/operations", json=submission())
        assert fine.status_code == 202


# Sampling.


def sampling(**changes: Any) -> dict[str, Any]:
    prompt = {"dtype": "int64", "data": [5, 6]}
    return {"token": "t", "session": "s1", "prompt": prompt, "max_tokens": 2, **changes}


@pytest.mark.parametrize(
    ("changes", "status", "named"),
    [
        ({"prompt": {"dtype": "int64", "data": []}}, 422, "prompt"),
        ({"prompt": {"dtype": "float32", "data": [1.0]}}, 422, "prompt"),
        ({"prompt": {"dtype": "int64", "data": [1.5]}}, 422, "prompt"),
        ({"prompt": {"dtype": "int64", "data": [1, 2], "shape": [3]}}, 422, "prompt"),
        ({"prompt": {"dtype": "int64", "data": "AAA="}}, 422, "prompt"),
        ({"n": 0}, 422, "n:"),
        ({"n": 1001}, 422, "n:"),
        ({"max_tokens": -1}, 422, "max_tokens"),
        ({"temperature": -1}, 422, "temperature"),
        ({"top_k": 0}, 422, "top_k"),
        ({"top_p": 0}, 422, "top_p"),
        ({"stop": ""}, 422, "stop"),
        ({"stop": [-1]}, 422, "stop"),
        ({"seed": 2**64}, 422, "seed"),
        ({"token": ""}, 422, "token"),
        ({"version": 2}, 422, "version"),
        ({"model": "tiny"}, 422, "exactly one"),
        ({"session": None}, 422, "exactly one"),
        ({"session": "nope"}, 404, "nope"),
        ({"session": None, "model": "nope"}, 404, "tiny"),
        ({"session": None, "source": "g1@3"}, 404, "g1@3"),
        ({"session": None, "weights": "wgt_nope"}, 404, "wgt_nope"),
        ({"temprature": 1}, 400, "temprature"),
    ],
)
async def test_a_bad_sampling_request_is_refused_by_field(
    client: httpx.AsyncClient, changes: dict[str, Any], status: int, named: str
) -> None:
    answer = await client.post("/v1/samples", json=sampling(**changes))
    assert named in is_problem(answer, status)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("sessions", {"base_model": "tiny", "metadata": {"k": "BAD"}}, "metadata.k"),
        ("sessions", {"base_model": "tiny", "lora": {"targets": ["BAD"]}}, "lora.targets.0"),
        ("samples", sampling(stop=["ok", "BAD"]), "stop.1"),
        ("sessions/s1/operations", {"number": 1, "token": "BAD"}, "token"),
        ("sessions/s1/metrics", {"step": 1, "metrics": {"BAD": 1.0}}, "metrics"),
        ("groups", {"name": "a", "description": "BAD"}, "description"),
    ],
)
async def test_text_that_is_not_unicode_is_refused_by_field(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], field: str
) -> None:
    content = msgspec.json.encode(body).replace(b"BAD", rb"a\ud800")
    headers = {"content-type": "application/json"}
    answer = await client.post(f"/v1/{path}", content=content, headers=headers)
    assert is_problem(answer, 422).startswith(f"{field}: its text has half a surrogate pair")


@pytest.mark.parametrize(
    ("metrics", "named"),
    [
        ({f"m{i}": 1.0 for i in range(201)}, "201 names; one call takes 200"),
        ({"n" * 129: 1.0}, "1 to 128 characters"),
        ({"": 1.0}, "1 to 128 characters"),
    ],
)
async def test_metrics_have_limits(
    client: httpx.AsyncClient, metrics: dict[str, float], named: str
) -> None:
    logged = await client.post("/v1/sessions/s1/metrics", json={"step": 1, "metrics": metrics})
    assert named in is_problem(logged, 422)


@pytest.mark.parametrize("path", ["/healthz", "/v1/sessions/s1", "/openai/v1/models", "/docs"])
async def test_what_answers_get_answers_head(client: httpx.AsyncClient, path: str) -> None:
    got, head = await client.get(path), await client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == got.headers["content-length"]


async def test_the_same_token_is_the_same_answer_metered_once(client: httpx.AsyncClient) -> None:
    first = (await client.post("/v1/samples", json=sampling())).json()
    again = (await client.post("/v1/samples", json=sampling())).json()
    assert again == first
    other = await client.post("/v1/samples", json=sampling(max_tokens=3))
    assert "token" in is_problem(other, 409)
    session = (await client.get("/v1/sessions/s1")).json()["id"]
    totals = (await client.get(f"/v1/usage/totals?session={session}")).json()["tokens"]
    assert (totals["prefill"], totals["sample"]) == (2, 2)


async def test_a_session_that_is_stopped_takes_no_more(client: httpx.AsyncClient) -> None:
    await start(client, "short")
    url = "/v1/sessions/short"
    done = (await client.post(f"{url}/operations", json=submission())).json()
    await client.post(f"{url}/stop")
    assert (await client.get(f"{url}?wait=20")).json()["status"] == "stopped"
    answer = await client.post(f"{url}/operations", json=submission(2, "other"))
    assert "stopped" in is_problem(answer, 409)
    late = await client.post("/v1/samples", json=sampling(session="short"))
    assert "stopped" in is_problem(late, 409)
    assert (await client.get(f"/v1/operations/{done['id']}")).json()["status"] == "completed"
    again = (await client.post(f"{url}/operations", json=submission())).json()
    assert again["id"] == done["id"]
    assert (await client.post(f"{url}/stop")).status_code == 202


async def test_names_in_other_scripts_come_back_as_they_were(client: httpx.AsyncClient) -> None:
    metadata = {"clé": "naïve 🦊 \x01", "日本": "v" * 1024}
    shown = await start(client, "s3", metadata=metadata)
    assert shown["metadata"] == metadata
    logged = await client.post(
        "/v1/sessions/s3/metrics", json={"step": 0, "metrics": {"récompense": 1.5}}
    )
    assert logged.status_code == 204
    metrics = (await client.get("/v1/sessions/s3/metrics")).json()["data"]
    assert metrics == [{"step": 0, "metrics": {"récompense": 1.5}}]


async def test_a_tensor_that_is_no_tensor_fails_its_operation_only(
    client: httpx.AsyncClient,
) -> None:
    await start(client, "tensors")
    good = {"dtype": "int64", "data": [5, 6]}
    for number, bad in enumerate(
        (
            {"dtype": "int64", "data": "AAA="},
            {"dtype": "int64", "data": [1e300, 1]},
            {"dtype": "int64", "data": [5, 6], "shape": [3]},
        ),
        1,
    ):
        body = {"type": "forward", "data": [{"tokens": good, "inputs": {"target_tokens": bad}}]}
        given = submission(number, f"t{number}", body)
        accepted = (await client.post("/v1/sessions/tensors/operations", json=given)).json()
        ended = (await client.get(f"/v1/operations/{accepted['id']}?wait=20")).json()
        assert (ended["status"], ended["error"]["kind"]) == ("failed", "invalid")
        assert ended["error"]["message"].startswith("datum 0: target_tokens: ")


async def test_infinite_and_huge_numbers_are_no_int64() -> None:
    for bad in (float("inf"), float("nan"), 2.0**63, 0.5):
        with pytest.raises(wire.WireError, match="int64"):
            wire.Tensor("int64", [bad]).array()
    assert np.isinf(wire.Tensor("float32", [1e300]).array()).all()
