"""Uploads over REST, on every store: what is there can be asked for, and nothing is made twice."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from structlog.testing import capture_logs

from registry.access.actor import Role
from registry.artifacts.store import BlobStore
from registry.kit.clock import now
from registry.uploads.clearing import expire_due
from registry.uploads.model import Upload
from support.hosted import Hosted
from support.model_files import change_json, change_tensors
from support.registry_service import is_problem
from support.uploads import MIB, Outside, begin, commit, missing, put, send, taking
from support.waiting import until

UPLOADS = "/v1/groups/facts/uploads"
NOTES = "checkpoints/hf/notes.txt"


@pytest.fixture
def outside(tmp_path: Path) -> Outside:
    return Outside(tmp_path)


@pytest.fixture(params=["local", "minio", "versitygw", "postgres_url"])
async def anywhere(
    request: pytest.FixtureRequest, tmp_path: Path, outside: Outside
) -> AsyncIterator[Hosted]:
    """On every store, and once on PostgreSQL."""
    found = None if request.param == "local" else request.getfixturevalue(request.param)
    where = {"database_url": found} if request.param == "postgres_url" else {"server": found}
    async with taking(tmp_path / "home", outside, **where) as service:
        yield service


@pytest.fixture
async def service(tmp_path: Path, outside: Outside) -> AsyncIterator[Hosted]:
    """On a directory."""
    async with taking(tmp_path / "home", outside) as service:
        yield service


@pytest.fixture
async def client(service: Hosted) -> AsyncIterator[httpx.AsyncClient]:
    async with service.client() as client:
        yield client


async def cut_off(service: Hosted, path: str, *headers: str) -> None:
    """Hang up in the middle of the body."""
    where = httpx.URL(service.url)
    _, writer = await asyncio.open_connection(where.host, where.port)
    said = (*headers, f"Authorization: {service.headers['Authorization']}", "Content-Length: 1000")
    lines = (f"{path} HTTP/1.1", "Host: x", "Content-Type: application/json", *said, "", "{")
    writer.write("\r\n".join(lines).encode())
    await writer.drain()
    writer.close()


async def stored(store: BlobStore) -> list[str]:
    return await store.keys("")


async def test_parts_then_a_commit_make_one_version_with_the_same_bytes(
    anywhere: Hosted, outside: Outside
) -> None:
    async with anywhere.client() as client:
        plan = await begin(client, outside)
        await send(client, outside, plan)
        first, again = await commit(client, plan), await commit(client, plan)
        assert (first.status_code, first.json()["version"]) == (200, "facts@1")
        assert again.json()["version"] == "facts@1"
        version = (await client.get("/v1/groups/facts/versions/1")).json()
        assert (version["kind"], version["base_model"]) == ("adapter", "tiny")
        assert version["lora"]["targets"] == ["q_proj", "lm_head"]
        notes = await client.get(f"/v1/groups/facts/versions/1/files/{NOTES}")
        assert notes.content == (outside.path / "notes.txt").read_bytes()
        checked = (await client.post("/v1/groups/facts/versions/1/verify")).json()
    assert checked["intact"]
    assert version["digest"] == plan["digest"]


async def test_a_large_file_goes_to_a_bucket_past_the_service(
    minio: Any, tmp_path: Path, outside: Outside
) -> None:
    async with taking(tmp_path / "home", outside, minio) as service, service.client() as client:
        plan = await begin(client, outside)
        (notes,) = (file for file in plan["files"] if file["path"] == NOTES)
        assert [part["size"] for part in notes["missing"]] == [5 * MIB, 5 * MIB, 2 * MIB]
        assert all(part["url"].startswith(minio.endpoint) for part in notes["missing"])
        lives = notes["missing"][0]["expires_at"]
        assert lives is not None
        assert "X-Amz-Expires=900" in notes["missing"][0]["url"]


async def test_who_may_only_read_gets_no_address_to_write_to(
    minio: Any, tmp_path: Path, outside: Outside
) -> None:
    async with taking(tmp_path / "home", outside, minio) as service, service.client() as client:
        plan = await begin(client, outside)
        async with service.client(await service.token("default", Role.viewer)) as viewer:
            found = (await viewer.get(f"{UPLOADS}/{plan['id']}")).json()
    (notes,) = (file for file in found["files"] if file["path"] == NOTES)
    assert [part["url"] for part in notes["missing"]] == [None, None, None]


async def test_what_is_there_can_be_asked_for_at_any_time(
    anywhere: Hosted, outside: Outside
) -> None:
    async with anywhere.client() as client:
        plan = await begin(client, outside)
        file, part = next(pair for pair in missing(plan) if pair[0]["path"] == NOTES)
        await put(client, part["url"], outside.part(file, 1))
        found = (await client.get(f"{UPLOADS}/{plan['id']}")).json()
        again = await begin(client, outside)
    notes = next(file for file in found["files"] if file["path"] == NOTES)
    assert notes["received"] == [1]
    assert again["id"] == plan["id"]
    assert len(missing(again)) == len(missing(plan)) - 1


async def test_a_missing_part_is_named_and_can_still_be_sent(
    anywhere: Hosted, outside: Outside
) -> None:
    async with anywhere.client() as client:
        plan = await begin(client, outside)
        file, part = next(pair for pair in missing(plan) if pair[0]["path"] == NOTES)
        left = {**plan, "files": [f for f in plan["files"] if f["path"] != NOTES]}
        await send(client, outside, left)
        await put(client, part["url"], outside.part(file, 1))
        said = is_problem(await commit(client, plan), 409, "conflict")
        assert said.startswith(f"{NOTES}: part 2")
        assert (await client.get("/v1/groups/facts")).status_code == 404
        await send(client, outside, await begin(client, outside))
        assert (await commit(client, plan)).json()["version"] == "facts@1"


async def test_bytes_that_differ_are_refused_by_name_and_leave_nothing(
    anywhere: Hosted, outside: Outside
) -> None:
    async with anywhere.client() as client:
        plan = await begin(client, outside, group="ghost")
        for file, part in missing(plan):
            data = outside.part(file, part["number"])
            wrong = file["path"] == NOTES and part["number"] == 2
            await put(client, part["url"], b"x" * len(data) if wrong else data)
        answer = await commit(client, plan)
        assert is_problem(answer, 422, "invalid").startswith(f"{NOTES}: its SHA-256 is ")
        assert is_problem(await commit(client, plan), 422, "invalid").startswith(NOTES)
        assert (await client.get("/v1/groups/ghost")).status_code == 404
        assert (await client.get("/v1/groups")).json()["data"] == []
        assert await stored(anywhere.store) == []
        other = await begin(client, outside, group="ghost")
        assert other["id"] != plan["id"]


async def test_two_commits_at_once_make_one_version(anywhere: Hosted, outside: Outside) -> None:
    async with anywhere.client() as client:
        plan = await begin(client, outside)
        await send(client, outside, plan)
        answers = await asyncio.gather(*(commit(client, plan) for _ in range(5)))
        assert {answer.json()["version"] for answer in answers} == {"facts@1"}
        versions = (await client.get("/v1/groups/facts/versions")).json()["data"]
    assert len(versions) == 1


async def test_an_aborted_upload_takes_its_bytes_with_it(
    anywhere: Hosted, outside: Outside
) -> None:
    async with anywhere.client() as client:
        plan = await begin(client, outside)
        await send(client, outside, plan)
        assert (await client.delete(f"{UPLOADS}/{plan['id']}")).status_code == 204
        assert (await client.delete(f"{UPLOADS}/{plan['id']}")).status_code == 204
        is_problem(await commit(client, plan), 409, "conflict")
        found = (await client.get(f"{UPLOADS}/{plan['id']}")).json()
    assert found["state"] == "aborted"
    assert await stored(anywhere.store) == []
    (notes,) = (file for file in found["files"] if file["path"] == NOTES)
    key = f"{(await row(anywhere, plan['id'])).prefix}{notes['path']}"
    assert await anywhere.store.unfinished(key) == []


async def row(service: Hosted, upload_id: str, **changes: Any) -> Upload:
    async with service.database.begin() as db:
        upload = await db.get_one(Upload, upload_id)
        for name, value in changes.items():
            setattr(upload, name, value)
    return upload


async def test_an_upload_past_its_time_is_given_up(anywhere: Hosted, outside: Outside) -> None:
    async with anywhere.client() as client:
        plan = await begin(client, outside)
        await send(client, outside, plan)
        assert await expire_due(anywhere.database, anywhere.store) == 0
        later = now() + timedelta(days=8)
        assert await expire_due(anywhere.database, anywhere.store, at=later) == 1
        assert await expire_due(anywhere.database, anywhere.store, at=later) == 0
        found = (await client.get(f"{UPLOADS}/{plan['id']}")).json()
    assert (found["state"], found["version"]) == ("expired", None)
    assert await stored(anywhere.store) == []


async def test_a_commit_whose_process_died_goes_on_when_it_is_asked_for(
    service: Hosted, client: httpx.AsyncClient, outside: Outside
) -> None:
    plan = await begin(client, outside)
    await send(client, outside, plan)
    long_ago = now() - timedelta(minutes=5)
    await row(service, plan["id"], state="committing", claim="dead", claimed_at=long_ago)
    assert (await commit(client, plan)).json()["version"] == "facts@1"


async def test_an_upload_begun_again_by_key_says_what_is_missing_now(
    client: httpx.AsyncClient, outside: Outside
) -> None:
    key, form = {"Idempotency-Key": "k1"}, outside.request()
    first = await client.post(UPLOADS, json=form, headers=key)
    await send(client, outside, first.json())
    again = await client.post(UPLOADS, json=form, headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert "Idempotent-Replayed" not in again.headers
    assert again.json()["id"] == first.json()["id"]
    assert missing(again.json()) == []


async def test_a_commit_that_runs_elsewhere_is_waited_for(
    service: Hosted, client: httpx.AsyncClient, outside: Outside
) -> None:
    plan = await begin(client, outside)
    await send(client, outside, plan)
    await row(service, plan["id"], state="committing", claim="alive", claimed_at=now())
    key = {"Idempotency-Key": "k1"}
    place = f"{UPLOADS}/{plan['id']}/commit"
    answer = await client.post(place, params={"wait": 0}, headers=key)
    assert (answer.status_code, answer.json()["state"]) == (202, "committing")
    await row(service, plan["id"], state="open", claim=None)
    assert (await commit(client, plan)).json()["version"] == "facts@1"
    answer = await client.post(place, params={"wait": 0}, headers=key)
    assert (answer.status_code, answer.json()["version"]) == (200, "facts@1")


async def test_another_account_and_a_viewer_see_no_more_than_they_may(
    service: Hosted, client: httpx.AsyncClient, outside: Outside
) -> None:
    plan = await begin(client, outside)
    place = f"{UPLOADS}/{plan['id']}"
    part = missing(plan)[0][1]["url"]
    async with service.client(await service.token("bob")) as bob:
        for method, path in (
            *(("GET", place), ("DELETE", place), ("POST", f"{place}/commit"), ("PUT", part)),
        ):
            is_problem(await bob.request(method, path), 404, "not_found")
        assert (await bob.get(UPLOADS)).json()["data"] == []
    async with service.client(await service.token("default", Role.viewer)) as viewer:
        assert (await viewer.get(place)).status_code == 200
        is_problem(await viewer.post(f"{place}/commit"), 403, "forbidden")
        is_problem(await viewer.post(UPLOADS, json=outside.request()), 403, "forbidden")


CONFIG = "checkpoints/hf/adapter_config.json"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"files": [{"path": CONFIG, "size": -1, "sha256": "ab" * 32}]}, "files.0.size"),
        ({"files": [{"path": "../x", "size": 2, "sha256": "ab" * 32}]}, "file name '../x'"),
        ({"kind": "other"}, "kind: "),
        ({"more": 1}, "more: "),
    ],
)
async def test_a_wrong_wish_is_refused_by_field_and_makes_nothing(
    client: httpx.AsyncClient, outside: Outside, changes: dict[str, Any], said: str
) -> None:
    answer = await client.post(UPLOADS, json=outside.request(**changes))
    assert said in is_problem(answer, 422, "invalid")
    assert (await client.get(UPLOADS)).json()["data"] == []
    assert (await client.get("/v1/groups")).json()["data"] == []


@pytest.mark.parametrize(
    ("place", "data", "status", "said"),
    [
        (f"{CONFIG}/parts/1", b"", 422, "part 1 has 0 of its"),
        (f"{CONFIG}/parts/1", b"x" * 5000, 422, "part 1 has more than its"),
        (f"{CONFIG}/parts/2", b"", 422, "part 2 is not one of 1 to 1"),
        ("checkpoints/hf/other/parts/1", b"", 404, "has no file 'checkpoints/hf/other'"),
        ("..%2f..%2fx/parts/1", b"", 404, "has no file"),
    ],
)
async def test_a_wrong_part_is_refused(
    client: httpx.AsyncClient, outside: Outside, place: str, data: bytes, status: int, said: str
) -> None:
    plan = await begin(client, outside)
    answer = await client.put(f"{UPLOADS}/{plan['id']}/files/{place}", content=data)
    assert answer.status_code == status
    assert said in answer.json()["detail"]


async def test_a_small_file_of_other_bytes_is_refused_at_once(
    client: httpx.AsyncClient, outside: Outside
) -> None:
    plan = await begin(client, outside)
    (config,) = (file for file in plan["files"] if file["path"] == CONFIG)
    answer = await client.put(config["missing"][0]["url"], content=b"x" * config["size"])
    wrong = hashlib.sha256(b"x" * config["size"]).hexdigest()
    assert wrong in is_problem(answer, 422, "invalid")


async def test_a_token_is_one_upload_and_frees_no_other_manifest(
    client: httpx.AsyncClient, outside: Outside
) -> None:
    await begin(client, outside)
    (outside.path / "more.txt").write_text("more")
    answer = await client.post(UPLOADS, json=outside.request())
    assert is_problem(answer, 409, "conflict").startswith("token: upload pkg_")


async def test_a_commit_of_another_digest_is_refused(
    client: httpx.AsyncClient, outside: Outside
) -> None:
    plan = await begin(client, outside)
    place = f"{UPLOADS}/{plan['id']}/commit"
    answer = await client.post(place, json={"digest": "sha256:00"})
    assert is_problem(answer, 422, "invalid").startswith("digest: is 'sha256:00'")


async def test_uploads_are_listed_newest_first_in_pages(
    client: httpx.AsyncClient, outside: Outside
) -> None:
    made = [(await begin(client, outside, token=f"t{n}"))["id"] for n in range(3)]
    page = (await client.get(UPLOADS, params={"limit": 2})).json()
    rest = (await client.get(UPLOADS, params={"limit": 2, "cursor": page["next_cursor"]})).json()
    assert [each["id"] for each in page["data"] + rest["data"]] == made[::-1]
    assert "files" not in page["data"][0]
    assert (await client.get(UPLOADS, params={"state": "committed"})).json()["data"] == []


def drop_a_tensor(outside: Outside) -> None:
    change_tensors(
        outside.path / "adapter_model.safetensors",
        lambda tensors: [tensors.pop(name) for name in sorted(tensors) if "layers.1" in name],
    )


def name_a_path(outside: Outside) -> None:
    change_json(outside.path / "adapter_config.json", base_model_name_or_path="/root/base")


def pickle_it(outside: Outside) -> None:
    torch.save({"o": 1}, outside.path / "optimizer.bak")


def render_for_ever(outside: Outside) -> None:
    loop = "{% for a in range(99999) %}"
    (outside.path / "chat_template.jinja").write_text(loop * 3 + "{% endfor %}" * 3)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (drop_a_tensor, "adapter_model.safetensors: lacks an update of model.layers.1"),
        (
            name_a_path,
            "base_model_name_or_path is the absolute path '/root/base'; name the base instead",
        ),
        (render_for_ever, "chat_template.jinja: the chat template does not render"),
        (pickle_it, "optimizer.bak: is a zip or gzip archive; pickled"),
    ],
)
async def test_the_service_looks_for_itself(
    client: httpx.AsyncClient,
    service: Hosted,
    outside: Outside,
    damage: Callable[[Outside], None],
    said: str,
) -> None:
    damage(outside)
    plan = await begin(client, outside)
    await send(client, outside, plan)
    assert said in is_problem(await commit(client, plan), 422, "invalid")
    assert (await client.get("/v1/groups/facts")).status_code == 404
    assert await stored(service.store) == []


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("PUT {part}", ()),
        ("PUT {part}", ("Idempotency-Key: k",)),
        ("POST /v1/groups/facts/versions/1/merge", ("Idempotency-Key: k",)),
    ],
)
async def test_a_client_that_hangs_up_in_its_body_is_one_line_of_the_log(
    client: httpx.AsyncClient,
    service: Hosted,
    outside: Outside,
    caplog: pytest.LogCaptureFixture,
    path: str,
    headers: tuple[str, ...],
) -> None:
    _, part = missing(await begin(client, outside))[0]
    with capture_logs() as lines:
        await cut_off(service, path.format(part=part["url"]), *headers)
        await until(lambda: bool(lines))
        assert (await client.get("/v1/groups")).status_code == 200
    assert [(line["event"], line["log_level"]) for line in lines] == [("client.left", "info")]
    assert "Traceback" not in caplog.text
