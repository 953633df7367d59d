"""The registry's REST as a client sees it: shapes, pages, permissions and errors."""

from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from exporters.hf_model import FileInfo, ModelInfo
from registry.access import service as access
from registry.access.actor import Role
from registry.kit.clock import now
from registry.kit.db import Database
from registry.models import service as models
from registry.packages.model import PackageKind
from registry.usage import service as usage
from registry.usage.model import Category
from support.packages import LORA, a_version
from support.registry_service import ADAPTER, BYTES, ENTRY, Service, is_problem, registry_service


@pytest.fixture
async def service(database: Database) -> AsyncIterator[Service]:
    async with registry_service(database) as service:
        yield service


async def test_a_version_is_shown_with_everything_that_is_known(service: Service) -> None:
    await service.publish(step=3, metrics={"loss": 0.5}, user_metadata={"a": "b"})
    answer = await service.client.get("/v1/groups/demo/versions/1")
    body = answer.json()
    assert body.pop("id").startswith("pkg_")
    assert body.pop("digest").startswith("sha256:")
    assert body.pop("created_at").endswith("Z")
    assert body == {
        **{"group": "demo", "version": 1, "ref": "demo@1", "kind": "adapter"},
        **{"resumable": False, "promotable": False, "size": len(BYTES), "step": 3},
        **{"base_model": "tiny", "base_digest": "sha256:00", "lora": dict(LORA)},
        **{"parent": None, "session": None, "operation": None, "metrics": {"loss": 0.5}},
        **{"description": "", "metadata": {"a": "b"}, "usage": {}, "approval": "pending"},
        **{"stage": "none", "tags": [], "aliases": [], "expires_at": None, "revision": 1},
        **dict.fromkeys(("deleted_at", "deleted_by", "deleted_why"), None),
        **dict.fromkeys(("purge_at", "purged_at", "freed"), None),
    }


async def test_a_group_is_created_listed_and_shown(service: Service) -> None:
    new = {"name": "demo", "description": "mine"}
    created = await service.client.post("/v1/groups", json=new)
    assert created.status_code == 201
    assert created.json()["last_version"] == 0
    assert (await service.client.get("/v1/groups/demo")).json() == created.json()
    listed = (await service.client.get("/v1/groups")).json()
    assert listed == {"data": [created.json()], "next_cursor": None}
    again = await service.client.post("/v1/groups", json=new)
    assert "demo" in is_problem(again, 409, "conflict")


async def test_versions_come_newest_first_in_pages(service: Service) -> None:
    for _ in range(3):
        await service.publish()
    url = "/v1/groups/demo/versions?limit=2"
    first = (await service.client.get(url)).json()
    rest_of_it = (await service.client.get(f"{url}&cursor={first['next_cursor']}")).json()
    assert [row["version"] for row in first["data"] + rest_of_it["data"]] == [3, 2, 1]
    assert rest_of_it["next_cursor"] is None


async def test_versions_are_filtered_by_kind(service: Service) -> None:
    await service.publish()
    async with service.database.begin() as db:
        await a_version(db, service.alice, kind=PackageKind.merged)
    listed = (await service.client.get("/v1/groups/demo/versions?kind=merged")).json()
    assert [row["ref"] for row in listed["data"]] == ["demo@2"]
    assert listed["data"][0]["promotable"] is True
    wrong = await service.client.get("/v1/groups/demo/versions?kind=pickle")
    assert "kind" in is_problem(wrong, 422, "invalid")


async def test_a_query_parameter_that_a_call_lacks_is_named(service: Service) -> None:
    await service.publish()
    slip = await service.client.get("/v1/groups/demo/versions?kinds=merged")
    said = is_problem(slip, 422, "invalid")
    assert said.startswith("kinds: ")
    assert "kind," in said
    none = await service.client.get("/v1/groups/demo?deep=1")
    assert "deep: " in is_problem(none, 422, "invalid")


async def test_a_cursor_of_other_filters_is_malformed(service: Service) -> None:
    for _ in range(2):
        await service.publish()
    url = "/v1/groups/demo/versions?limit=1"
    cursor = (await service.client.get(url)).json()["next_cursor"]
    for bad in (f"{url}&kind=adapter&cursor={cursor}", f"{url}&cursor=x", f"{url}&cursor="):
        assert "cursor" in is_problem(await service.client.get(bad), 400, "malformed")


@pytest.mark.parametrize("limit", ["0", "201", "x"])
async def test_a_limit_out_of_range_is_refused(service: Service, limit: str) -> None:
    answer = await service.client.get(f"/v1/groups?limit={limit}")
    assert "limit" in is_problem(answer, 422, "invalid")


async def test_a_file_is_listed_and_downloaded(service: Service) -> None:
    await service.publish()
    url = "/v1/groups/demo/versions/1/files"
    files = (await service.client.get(url)).json()["data"]
    assert files == [{"path": ADAPTER, "size": len(BYTES), "sha256": ENTRY.sha256}]
    got = await service.client.get(f"{url}/{ADAPTER}")
    assert (got.content, got.headers["etag"]) == (BYTES, f'"{ENTRY.sha256}"')
    known = await service.client.get(
        f"{url}/{ADAPTER}", headers={"If-None-Match": f'"{ENTRY.sha256}"'}
    )
    assert (known.status_code, known.content) == (304, b"")


async def test_a_damaged_or_missing_file_is_never_served(service: Service) -> None:
    key = await service.publish()
    url = f"/v1/groups/demo/versions/1/files/{ADAPTER}"
    await service.store.put_bytes(key, b'{"r": 5}')
    assert ADAPTER in is_problem(await service.client.get(url), 500, "internal")
    await service.store.delete(key)
    assert ADAPTER in is_problem(await service.client.get(url), 500, "internal")


@pytest.mark.parametrize(
    "path",
    ["none.json", "%2e%2e/x", "..%2f..%2f..%2fetc%2fpasswd", "%252e%252e/x", "a%5C..%5Cx", "%00"],
)
async def test_a_path_outside_the_manifest_is_not_found(service: Service, path: str) -> None:
    await service.publish()
    answer = await service.client.get(f"/v1/groups/demo/versions/1/files/{path}")
    is_problem(answer, 404, "not_found")


PLACES = ["", "/versions", "/versions/1", "/versions/1/files", f"/versions/1/files/{ADAPTER}"]


@pytest.mark.parametrize("place", PLACES)
async def test_another_accounts_group_answers_like_an_unknown_one(
    service: Service, place: str
) -> None:
    await service.publish()
    async with service.database.begin() as db:
        bob = await access.create_account(db, name="bob")
    headers = await service.token(Role.admin, bob.id)
    answers = []
    for group in ("demo", "nope", "%00"):
        answer = await service.client.get(f"/v1/groups/{group}{place}", headers=headers)
        is_problem(answer, 404, "not_found")
        answers.append(answer.json())
    assert answers[1] == {**answers[0], "detail": answers[0]["detail"].replace("demo", "nope")}


@pytest.mark.parametrize("version", ["0", "-1", "a_b", str(2**31), "9" * 30])
async def test_a_version_that_is_no_number_is_refused(service: Service, version: str) -> None:
    answer = await service.client.get(f"/v1/groups/demo/versions/{version}")
    assert "version" in is_problem(answer, 422, "invalid")


async def test_a_missing_token_is_said(service: Service) -> None:
    for header in ("", "Basic x", "Bearer"):
        answer = await service.client.get("/v1/groups", headers={"Authorization": header})
        assert "token missing" in is_problem(answer, 401, "unauthenticated")
        assert answer.headers["www-authenticate"] == "Bearer"


async def test_unknown_revoked_and_expired_tokens_are_told_apart(service: Service) -> None:
    revoked = await service.token(Role.viewer)
    async with service.database.begin() as db:
        await access.revoke_token(db, revoked["X-Token-Id"])
    expired = await service.token(Role.viewer, expires_at=now() - timedelta(seconds=1))
    unknown = {"Authorization": "Bearer my-guess"}
    for headers, word in ((unknown, "unknown"), (revoked, "revoked"), (expired, "expired")):
        answer = await service.client.get("/v1/groups", headers=headers)
        assert f"token {word}" in is_problem(answer, 401, "unauthenticated")


async def test_a_viewer_reads_but_does_not_write(service: Service) -> None:
    headers = await service.token(Role.viewer)
    assert (await service.client.get("/v1/groups", headers=headers)).status_code == 200
    answer = await service.client.post("/v1/groups", json={"name": "x"}, headers=headers)
    assert "member" in is_problem(answer, 403, "forbidden")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"name": "-x"}, "name"),
        ({"name": "x", "description": "d" * 1025}, "description"),
        ({"description": "no name"}, "name"),
        ({"name": "x", "descripton": "misspelt"}, "descripton"),
    ],
)
async def test_a_bad_group_is_refused_by_field(
    service: Service, body: dict[str, str], named: str
) -> None:
    answer = await service.client.post("/v1/groups", json=body)
    assert named in is_problem(answer, 422, "invalid")


async def add_model(service: Service, folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(BYTES)
    files = (FileInfo("tokenizer.json", len(BYTES), ENTRY.sha256),)
    info = ModelInfo(folder, "sha256:00", "LlamaForCausalLM", 64, 128, (2,), files)
    async with service.database.begin() as db:
        await models.add(db, name="org/tiny", inspected=info)


async def test_a_base_model_and_its_tokenizer_are_served(service: Service, tmp_path: Path) -> None:
    await add_model(service, tmp_path)
    shown = (await service.client.get("/v1/models/org/tiny")).json()
    assert (await service.client.get("/v1/models")).json() == {"data": [shown]}
    assert (shown["name"], shown["context_length"], shown["vocab_size"]) == ("org/tiny", 64, 128)
    assert "path" not in shown
    url = "/v1/models/org/tiny/tokenizer"
    assert (await service.client.get(url)).json() == {"files": ["tokenizer.json"]}
    got = await service.client.get(f"{url}/tokenizer.json")
    assert (got.content, got.headers["etag"]) == (BYTES, f'"{ENTRY.sha256}"')


@pytest.mark.parametrize("place", ["nope", "nope/tokenizer", "org/tiny/tokenizer/../../x", "%00"])
async def test_an_unknown_model_or_file_is_named(
    service: Service, tmp_path: Path, place: str
) -> None:
    await add_model(service, tmp_path)
    is_problem(await service.client.get(f"/v1/models/{place}"), 404, "not_found")


async def meter(service: Service, operation: str, session: str, **counts: int) -> None:
    tokens = {Category(name): count for name, count in counts.items()}
    async with service.database.begin() as db:
        await usage.record(
            db,
            account_id=service.alice.account_id,
            operation_id=operation,
            model="tiny",
            counts=tokens,
            session_id=session,
        )


async def test_usage_is_totalled_by_account_and_session(service: Service) -> None:
    await meter(service, "op_1", "ses_1", train=10)
    await meter(service, "op_2", "ses_2", prefill=3, sample=4)
    whole = (await service.client.get("/v1/usage/totals")).json()
    assert whole["object"] == "usage.totals"
    assert whole["tokens"] == {"train": 10, "prefill": 3, "cached_prefill": 0, "sample": 4}
    assert [row["session"] for row in whole["sessions"]] == ["ses_1", "ses_2"]
    one = (await service.client.get("/v1/usage/totals?session=ses_1")).json()
    assert (one["session"], one["tokens"]["train"], len(one["sessions"])) == ("ses_1", 10, 1)


async def test_usage_by_time_has_openais_shape(service: Service) -> None:
    await meter(service, "op_1", "ses_1", prefill=3, cached_prefill=2, sample=4, train=5)
    start = (now() - timedelta(days=1)).isoformat().replace("+00:00", "Z")
    page = (await service.client.get(f"/v1/usage?start={start}&group_by=session")).json()
    assert (page["object"], page["has_more"], page["next_page"]) == ("page", False, None)
    (today,) = (each for each in page["data"] if each["results"])  # or yesterday, at midnight
    assert (today["object"], today["end_time"] - today["start_time"]) == ("bucket", 86400)
    assert today["results"] == [
        {
            **{"object": "usage.result", "session": "ses_1", "model": None},
            **{"input_tokens": 5, "input_cached_tokens": 2, "output_tokens": 4},
            **{"train_tokens": 5, "num_model_requests": 1},
        }
    ]


async def test_pages_of_usage_are_continued(service: Service) -> None:
    url = "/v1/usage?start=2030-01-01T00:00:00Z&end=2030-01-01T05:00:00Z&bucket_width=1h&limit=3"
    first = (await service.client.get(url)).json()
    second = (await service.client.get(f"{url}&cursor={first['next_page']}")).json()
    assert (len(first["data"]), first["has_more"]) == (3, True)
    assert (len(second["data"]), second["has_more"]) == (2, False)
    assert second["data"][0]["start_time"] == first["data"][-1]["end_time"]


async def test_pages_without_a_start_go_on_though_the_clock_does(service: Service) -> None:
    starts, cursor = [], ""
    while True:
        page = (await service.client.get(f"/v1/usage?bucket_width=1h{cursor}")).json()
        starts += [bucket["start_time"] for bucket in page["data"]]
        if not page["has_more"]:
            break
        cursor = f"&cursor={page['next_page']}"
    assert {later - earlier for earlier, later in pairwise(starts)} == {3600}
    assert len(starts) >= 7 * 24


async def test_another_accounts_usage_is_not_counted(service: Service) -> None:
    await meter(service, "op_1", "ses_1", train=10)
    async with service.database.begin() as db:
        bob = await access.create_account(db, name="bob")
    headers = await service.token(Role.viewer, bob.id)
    for url in ("/v1/usage/totals", "/v1/usage/totals?session=ses_1"):
        answer = (await service.client.get(url, headers=headers)).json()
        assert sum(answer["tokens"].values()) == 0


@pytest.mark.parametrize(
    "query",
    [
        *("start=2030-01-01T00:00:00", "start=x", "start=9999-12-31T23:59:59Z"),
        *("start=2030-01-02T00:00:00Z&end=2030-01-01T00:00:00Z", "end=0001-01-01T00:00:00Z"),
        *("bucket_width=1m", "group_by=x", "session=%00"),
    ],
)
async def test_a_bad_question_about_usage_is_refused(service: Service, query: str) -> None:
    is_problem(await service.client.get(f"/v1/usage?{query}"), 422, "invalid")
