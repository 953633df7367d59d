"""How a commit ends that does not make a version, and what meets one that runs."""

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from registry.access.actor import Actor, Role
from registry.artifacts.errors import StoreUnavailable
from registry.artifacts.memory import MemoryBlobStore
from registry.artifacts.store import BlobStore, StoredObject
from registry.uploads import service as uploads
from registry.uploads.commit import Commit, longest_check_s
from registry.uploads.desk import Desk
from registry.uploads.errors import CommitBroken, UploadFailed, UploadIncomplete, UploadOver
from registry.uploads.model import Limits, Upload
from support.hosted import Hosted
from support.registry_service import is_problem
from support.uploads import MIB, Outside, begin, commit, missing, send, taking
from support.waiting import until

UPLOADS = "/v1/groups/facts/uploads"
LIMITS = Limits(part_bytes=8 * MIB, files=100, bytes=2**40, life_s=3600)


@pytest.fixture
def outside(tmp_path: Path) -> Outside:
    return Outside(tmp_path, notes=0)


@pytest.fixture
async def service(tmp_path: Path, outside: Outside) -> AsyncIterator[Hosted]:
    async with taking(tmp_path / "home", outside) as service:
        yield service


@pytest.fixture
async def client(service: Hosted) -> AsyncIterator[httpx.AsyncClient]:
    async with service.client() as client:
        yield client


async def row(service: Hosted, plan: dict[str, Any]) -> Upload:
    async with service.database.read() as db:
        return await db.get_one(Upload, plan["id"])


async def owner(service: Hosted, plan: dict[str, Any]) -> Actor:
    return Actor((await row(service, plan)).account_id, Role.member)


def desk(service: Hosted, folder: Path, store: BlobStore | None = None) -> Desk:
    return Desk(service.database, store or service.store, limits=LIMITS, scratch=folder)


async def a_commit(service: Hosted, plan: dict[str, Any], folder: Path) -> Commit:
    """Of one process, which has claimed the upload."""
    actor = await owner(service, plan)
    async with service.database.begin() as db:
        assert await uploads.claim(db, actor, plan["id"], "me")
        upload = await uploads.require_upload(db, actor, "facts", plan["id"])
    return Commit(service.database, service.store, folder, actor, upload, "me")


async def test_a_fault_of_ours_leaves_the_upload_open_and_names_nothing(
    service: Hosted, client: httpx.AsyncClient, outside: Outside, tmp_path: Path
) -> None:
    plan = await begin(client, outside)
    await send(client, outside, plan)
    (tmp_path / "file").write_text("where the scratch folder would be")
    work = desk(service, tmp_path / "file")
    with (
        capture_logs() as told,
        pytest.raises(CommitBroken, match=r"^unexpected error; the server log has it$"),
    ):
        await work.commit(await owner(service, plan), "facts", plan["id"], wait_s=60)
    assert [line["event"] for line in told if line["log_level"] == "error"] == ["upload.broken"]
    assert (await client.get(f"{UPLOADS}/{plan['id']}")).json()["state"] == "open"
    assert (await commit(client, plan)).json()["version"] == "facts@1"


class Away(MemoryBlobStore):
    async def objects(self, prefix: str) -> list[StoredObject]:
        raise StoreUnavailable("nobody listens")


async def test_a_commit_that_meets_a_dead_store_leaves_the_upload_open(
    service: Hosted, client: httpx.AsyncClient, outside: Outside, tmp_path: Path
) -> None:
    plan = await begin(client, outside)
    work = desk(service, tmp_path / "scratch", Away())
    with pytest.raises(StoreUnavailable):
        await work.commit(await owner(service, plan), "facts", plan["id"], wait_s=60)
    await send(client, outside, plan)
    assert (await commit(client, plan)).json()["version"] == "facts@1"


async def test_a_check_without_an_end_fails_the_upload(
    service: Hosted, client: httpx.AsyncClient, outside: Outside, tmp_path: Path
) -> None:
    plan = await begin(client, outside)
    await send(client, outside, plan)
    work = await a_commit(service, plan, tmp_path / "scratch")
    with pytest.raises(UploadFailed, match="files: their check took more than 0 seconds"):
        await work.run(limit_s=0)
    found = (await client.get(f"{UPLOADS}/{plan['id']}")).json()
    assert (found["state"], found["error"]) == (
        "failed",
        "files: their check took more than 0 seconds",
    )
    assert await service.store.keys("") == []


def test_a_check_may_take_ten_minutes_a_gibibyte_and_five_more() -> None:
    assert [longest_check_s(n * 2**30) for n in (0, 1, 2)] == [300, 900, 1500]


async def test_an_abort_wins_over_the_commit_that_runs(
    service: Hosted, client: httpx.AsyncClient, outside: Outside, tmp_path: Path
) -> None:
    plan = await begin(client, outside)
    await send(client, outside, plan)
    work = await a_commit(service, plan, tmp_path / "scratch")
    assert (await client.delete(f"{UPLOADS}/{plan['id']}")).status_code == 204
    late = (await row(service, plan)).prefix + "late"
    await service.store.put_bytes(late, b"written by a commit that did not know yet")
    with pytest.raises(UploadOver, match="is aborted"):
        await work.run(limit_s=60)
    assert await service.store.keys("") == []
    is_problem(await commit(client, plan), 409, "conflict")
    assert (await client.get("/v1/groups/facts")).status_code == 404


async def test_a_part_that_comes_after_the_abort_is_refused_and_taken_away(
    service: Hosted, client: httpx.AsyncClient, outside: Outside, tmp_path: Path
) -> None:
    plan = await begin(client, outside)
    file, part = missing(plan)[0]

    async def body() -> AsyncIterator[bytes]:
        await client.delete(f"{UPLOADS}/{plan['id']}")
        yield outside.part(file, part["number"])

    with pytest.raises(UploadOver, match="is aborted"):
        await desk(service, tmp_path).put_part(
            await owner(service, plan), "facts", plan["id"], file["path"], 1, body()
        )
    assert await service.store.keys("") == []


async def test_a_commit_that_fails_when_nobody_waits_is_no_surprise(
    service: Hosted, client: httpx.AsyncClient, outside: Outside, tmp_path: Path
) -> None:
    plan = await begin(client, outside)
    actor, work = await owner(service, plan), desk(service, tmp_path / "scratch")
    surprises: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: surprises.append(about))
    await work.commit(actor, "facts", plan["id"], wait_s=0)
    await until(lambda: not work._commits)
    gc.collect()
    assert surprises == []
    with pytest.raises(UploadIncomplete):
        await work.commit(actor, "facts", plan["id"], wait_s=60)
