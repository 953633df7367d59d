"""Garbage goes, both ways round, and nothing else does."""

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, update

from registry.artifacts.local import LocalBlobStore
from registry.artifacts.memory import MemoryBlobStore
from registry.artifacts.s3 import S3BlobStore
from registry.artifacts.s3_client import make_client
from registry.artifacts.store import BlobStore
from registry.kit.clock import now
from registry.kit.db import Database
from registry.packages import service
from registry.packages.errors import WriteCollected
from registry.packages.model import Package, PackageWrite
from registry.uploads.model import Upload
from support.garbage import ADAPTER, BEGIN_AND_DIE, SIZE, STATE, Yard, a_yard, heaps
from support.s3 import S3Server

OTHERS = ("readme.txt", "doctor-1/a", f"{'9' * 12}/demo/pkg_{'0' * 26}/checkpoints/hf/a.json")


@pytest.fixture(params=["local", "memory", "minio", "versitygw"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlobStore]:
    if request.param == "local":
        yield LocalBlobStore(tmp_path / "objects")
    elif request.param == "memory":
        yield MemoryBlobStore()
    else:
        server: S3Server = request.getfixturevalue(request.param)
        with closing(S3BlobStore(server.fresh_bucket(prefix="team/modelyard"))) as store:
            yield store


@pytest.fixture
async def yard(database: Database, store: BlobStore) -> Yard:
    return await a_yard(database, store)


@pytest.fixture
async def memory(database: Database) -> Yard:
    return await a_yard(database, MemoryBlobStore())


async def test_what_belongs_to_nothing_goes_and_all_else_stays(yard: Yard) -> None:
    version, live = await yard.version(), await yard.orphan("ses", "sessions")
    yard.living = {live.split("/")[2]}
    await yard.orphan()
    await yard.orphan()
    await yard.orphan("ses", "sessions")
    for key in OTHERS:
        await yard.store.put_bytes(key, b"x")
    report = await yard.collect()
    assert heaps(report) == {"versions": (2, 4, 2 * SIZE), "sessions": (1, 2, SIZE)}
    assert (report.bytes_freed, report.foreign.objects, report.damaged) == (3 * SIZE, 3, [])
    kept = [version.prefix + ADAPTER, version.prefix + STATE, live + ADAPTER, live + STATE]
    assert await yard.store.keys("") == sorted([*kept, *OTHERS])
    assert heaps(await yard.collect()) == {}


async def test_a_dry_run_says_the_same_and_deletes_nothing(yard: Yard) -> None:
    await yard.orphan()
    await yard.begun("op_dead")
    before = await yard.store.keys("")
    told = await yard.collect(dry_run=True)
    assert await yard.store.keys("") == before
    assert heaps(told) == {"versions": (1, 2, SIZE), "writes": (1, 2, SIZE)}
    assert heaps(await yard.collect()) == heaps(told)
    assert await yard.store.keys("") == []


async def test_what_is_young_stays(yard: Yard) -> None:
    kept = {await yard.orphan(), (await yard.begun("op_dead")).prefix}
    assert heaps(await yard.collect(older_than=timedelta(hours=1))) == {}
    assert await yard.folders() == kept


async def test_what_is_written_for_somebody_who_lives_is_published_after_all(yard: Yard) -> None:
    yard.living = {"op_1"}
    draft, dead = await yard.begun("op_1"), await yard.begun("op_2")
    assert heaps(await yard.collect()) == {"writes": (1, 2, SIZE)}
    async with yard.database.begin() as db:
        await service.ensure_group(db, yard.alice, "demo")
        package = await service.register(db, yard.alice, group_name="demo", draft=draft)
    assert package.version == 1
    assert await yard.folders() == {draft.prefix}
    with pytest.raises(WriteCollected):
        async with yard.database.begin() as db:
            await service.register(db, yard.alice, group_name="demo", draft=dead)


async def test_another_accounts_garbage_is_left_to_it(memory: Yard) -> None:
    other = await a_yard(memory.database, memory.store, "bob")
    await memory.orphan()
    kept = {await other.orphan(), (await other.begun("op_dead")).prefix}
    account_id = memory.alice.account_id
    assert heaps(await memory.collect(account_id=account_id)) == {"versions": (1, 2, SIZE)}
    assert await memory.folders() == kept
    everything = {"versions": (1, 2, SIZE), "writes": (1, 2, SIZE)}
    assert heaps(await memory.collect()) == everything


async def test_a_deleted_version_keeps_its_files_and_a_purged_one_does_not(memory: Yard) -> None:
    deleted, purged = await memory.version(), await memory.version()
    async with memory.database.begin() as db:
        await db.execute(update(Package).values(deleted_at=now()))
        ended = update(Package).where(Package.id == purged.id).values(purged_at=now())
        await db.execute(ended)
    report = await memory.collect()
    assert (heaps(report), report.damaged) == ({"versions": (1, 2, SIZE)}, [])
    assert await memory.folders() == {deleted.prefix}


async def test_an_upload_keeps_what_it_brought_until_it_is_over(memory: Yard) -> None:
    draft = await memory.begun("pkg_1")
    upload = Upload(
        id="pkg_1",
        account_id=memory.alice.account_id,
        group_name="demo",
        kind="state",
        prefix=draft.prefix,
        digest="sha256:00",
        size=SIZE,
        base_model="tiny",
        description="",
        user_metadata={},
        expires_at=now() + timedelta(days=1),
    )
    async with memory.database.begin() as db:
        db.add(upload)
    assert heaps(await memory.collect()) == {}
    async with memory.database.begin() as db:
        await db.execute(update(Upload).values(expires_at=now()))
    assert heaps(await memory.collect()) == {"writes": (1, 2, SIZE)}


async def test_a_file_that_is_missing_or_cut_is_told_and_the_row_stays(yard: Yard) -> None:
    version, whole = await yard.version(), await yard.version()
    await yard.store.delete(version.prefix + STATE)
    await yard.store.put_bytes(version.prefix + ADAPTER, b"123")
    report = await yard.collect()
    assert [(each.ref, each.path, each.problem) for each in report.damaged] == [
        ("demo@1", ADAPTER, "it has 3 bytes instead of 5"),
        ("demo@1", STATE, "it is missing"),
    ]
    assert heaps(report) == {}
    assert await yard.folders() == {version.prefix, whole.prefix}


async def test_a_file_that_is_gone_already_does_not_stop_a_collection(yard: Yard) -> None:
    draft = await yard.begun("op_dead")
    await yard.store.delete(draft.prefix + STATE)
    assert heaps(await yard.collect()) == {"writes": (1, 1, 5)}
    async with yard.database.read() as db:
        assert await db.get(PackageWrite, draft.id) is None


@pytest.fixture(params=["minio", "versitygw"])
def server(request: pytest.FixtureRequest) -> S3Server:
    found: S3Server = request.getfixturevalue(request.param)
    return found


async def test_parts_of_an_upload_whose_process_was_killed_go(
    server: S3Server, database: Database
) -> None:
    """No listing of objects shows them, and MinIO lists them only under their exact key."""
    bucket = server.fresh_bucket()
    with closing(S3BlobStore(bucket)) as store, closing(make_client(bucket)) as s3:
        yard = await a_yard(database, store)
        draft = await yard.begun("op_dead")
        await store.delete_folder(draft.prefix)
        words = [bucket.name, server.endpoint, draft.prefix + STATE]
        killed = await asyncio.create_subprocess_exec(sys.executable, "-c", BEGIN_AND_DIE, *words)
        assert await killed.wait() == -signal.SIGKILL
        where: dict[str, Any] = {"Bucket": bucket.name, "Prefix": draft.prefix + STATE}
        assert s3.list_objects_v2(Bucket=bucket.name)["KeyCount"] == 0
        assert len(s3.list_multipart_uploads(**where)["Uploads"]) == 1
        report = await yard.collect()
        assert heaps(report) == {"writes": (1, 0, 0), "uploads": (1, 1, 5 * 2**20)}
        assert "Uploads" not in s3.list_multipart_uploads(**where)


async def test_parts_that_a_store_lists_go_without_a_row(yard: Yard) -> None:
    """MinIO lists uploads only under their exact key, which no row tells; it ends them by itself
    after a day."""
    listed = await lists_uploads(yard.store)
    version = await yard.version()
    prefix = version.prefix.replace(version.id, f"pkg_{'0' * 26}")
    for key in (f"{prefix}{STATE}", f"{prefix}{ADAPTER}", OTHERS[2]):
        upload = await yard.store.begin_multipart(key)
        await yard.store.put_part(key, upload, 1, b"12345")
    assert heaps(await yard.collect(older_than=timedelta(hours=24))) == {}
    assert heaps(await yard.collect()) == ({"uploads": (2, 2, 10)} if listed else {})
    left = [each.key for each in await yard.store.unfinished("")]
    assert left == ([OTHERS[2]] if listed else [])


async def lists_uploads(store: BlobStore) -> bool:
    upload = await store.begin_multipart("a/b")
    found = await store.unfinished("a/")
    await store.abort_multipart("a/b", upload)
    return bool(found)


class Killed(BaseException):
    """The process is gone from here on."""


class Mortal(MemoryBlobStore):
    """Dies at its `nth` call."""

    def __init__(self) -> None:
        super().__init__()
        self.lives = 0

    def _call(self) -> None:
        self.lives -= 1
        if self.lives == 0:
            raise Killed

    async def objects(self, prefix: str) -> Any:
        self._call()
        return await super().objects(prefix)

    async def delete(self, key: str) -> None:
        self._call()
        await super().delete(key)

    async def unfinished(self, prefix: str) -> Any:
        self._call()
        return await super().unfinished(prefix)


async def test_a_collection_that_dies_at_any_point_is_finished_by_the_next(
    database: Database,
) -> None:
    store = Mortal()
    yard = await a_yard(database, store)
    deaths = 0
    for last in range(1, 100):
        kept = {(await yard.version()).prefix} | await yard.folders()
        await yard.orphan()
        await yard.begun("op_dead")
        store.lives = last
        try:
            await yard.collect()
        except Killed:
            deaths += 1
            await yard.collect()
        assert await yard.folders() == kept
        async with database.read() as db:
            assert await db.scalar(select(func.count()).select_from(PackageWrite)) == 0
        if last > deaths:
            break
    assert deaths >= 9
