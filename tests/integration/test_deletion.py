"""Deletion on the databases and stores that we have: races, many files, and processes that die."""

import asyncio
import hashlib
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from registry.access.actor import Actor
from registry.artifacts.local import LocalBlobStore
from registry.artifacts.manifest import FileEntry
from registry.artifacts.s3 import S3BlobStore
from registry.artifacts.store import BlobStore
from registry.kit import migrate
from registry.kit.clock import now
from registry.kit.db import Database
from registry.kit.errors import ServiceError
from registry.packages import deletion, holds, moves, retention, service
from registry.packages.errors import VersionDeleted, VersionHeld
from registry.packages.keeper import Keeper, Round
from registry.packages.model import EventKind, HolderKind, Package
from registry.packages.ref import PackageRef
from registry.packages.retention import Policy
from support.packages import a_version, an_actor
from support.registry_service import GRACE
from support.s3 import S3Server
from support.service import environment

ROOT = Path(__file__).parents[2]
ONE = PackageRef("demo", 1)
MANY = 2501
"""One more than two and a half of the pages in which S3 lists."""


@pytest.fixture(params=["sqlite", "postgresql"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    url = f"sqlite+aiosqlite:///{tmp_path}/home.db"
    if request.param == "postgresql":
        found: str = request.getfixturevalue("postgres_url")
        url = found.replace("postgresql://", "postgresql+psycopg://")
    await migrate.ensure(url, ROOT / "migrations")
    return url


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    database = Database.connect(url)
    yield database
    await database.close()


@pytest.fixture(params=["local", "minio", "versitygw"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param == "local":
        return LocalBlobStore(tmp_path / "objects")
    server: S3Server = request.getfixturevalue(request.param)
    return S3BlobStore(server.fresh_bucket(prefix="team"))


async def tiny_files(database: Database, store: BlobStore, actor: Actor, count: int) -> str:
    """The next version of `demo`, with so many files of one byte; returns its prefix."""
    digest = hashlib.sha256(b"x").hexdigest()
    files = [FileEntry(f"checkpoints/hf/{n:04}.json", 1, digest) for n in range(count)]
    async with database.begin() as db:
        prefix = (await a_version(db, actor, files=files)).prefix
    batches = [files[start::32] for start in range(32)]
    await asyncio.gather(*(_put(store, prefix, batch) for batch in batches))
    return prefix


async def _put(store: BlobStore, prefix: str, files: list[FileEntry]) -> None:
    for file in files:
        await store.put_bytes(prefix + file.path, b"x")


async def an_account(database: Database) -> Actor:
    async with database.begin() as db:
        return await an_actor(db)


async def delete(database: Database, actor: Actor, ref: PackageRef = ONE) -> None:
    async with database.begin() as db:
        await deletion.delete(db, actor, ref, grace=GRACE)


async def find(database: Database, actor: Actor, ref: PackageRef = ONE) -> Package:
    async with database.read() as db:
        return await service.require_version(db, actor, ref)


async def told(work: Awaitable[object]) -> str:
    try:
        await work
    except ServiceError as error:
        return type(error).__name__
    return "done"


async def test_of_a_hold_and_a_deletion_at_one_moment_one_is_refused(database: Database) -> None:
    actor = await an_account(database)

    async def place(package: Package) -> None:
        async with database.begin() as db:
            kind = HolderKind.session
            await holds.place(db, actor, package, holder_kind=kind, holder_id="ses_1")

    for number in range(1, 21):
        async with database.begin() as db:
            package = await a_version(db, actor)
        ref = PackageRef("demo", number)
        calls = [told(place(package)), told(delete(database, actor, ref))]
        outcome = await asyncio.gather(*(calls if number % 2 else reversed(calls)))
        assert Counter(outcome) in (
            Counter({"done": 1, VersionHeld.__name__: 1}),
            Counter({"done": 1, VersionDeleted.__name__: 1}),
        )
        async with database.read() as db:
            _, held = await holds.holds(db, actor, ref)
        found = await find(database, actor, ref)
        assert (found.deleted_at is None) == (len(held) == 1)


async def test_of_an_alias_and_a_deletion_at_one_moment_one_is_refused(database: Database) -> None:
    actor = await an_account(database)

    async def point(number: int) -> None:
        async with database.begin() as db:
            await moves.point(db, actor, "demo", f"a{number}", version=number, expected=None)

    for number in range(1, 21):
        async with database.begin() as db:
            await a_version(db, actor)
        ref = PackageRef("demo", number)
        calls = [told(point(number)), told(delete(database, actor, ref))]
        outcome = await asyncio.gather(*(calls if number % 2 else reversed(calls)))
        assert outcome.count("done") == 1
        found = await find(database, actor, ref)
        assert (found.deleted_at is None) == (len(found.alias_names) == 1)


async def test_of_many_deletions_one_is_made(database: Database) -> None:
    actor = await an_account(database)
    async with database.begin() as db:
        await a_version(db, actor)
    outcome = await asyncio.gather(*(told(delete(database, actor)) for _ in range(10)))
    assert Counter(outcome) == {"done": 1, VersionDeleted.__name__: 9}
    async with database.read() as db:
        assert len((await moves.history(db, actor, "demo")).items) == 1


async def test_keepers_on_one_database_do_each_thing_once(
    database: Database, tmp_path: Path
) -> None:
    actor, store = await an_account(database), LocalBlobStore(tmp_path / "objects")
    for _ in range(6):
        await tiny_files(database, store, actor, 3)
    for number in (1, 2):
        await delete(database, actor, PackageRef("demo", number))
    async with database.begin() as db:
        changes: moves.Changes = {"expires_at": now()}
        for number in (3, 4):
            ref = PackageRef("demo", number)
            await moves.edit(db, actor, ref, changes, expected=1, why="")
        await retention.set_policy(db, actor, "demo", Policy(keep_last=1))
    keepers = [Keeper(database, store, grace=GRACE) for _ in range(4)]
    at = now() + GRACE
    rounds = await asyncio.gather(*(keeper.round(at=at) for keeper in keepers))
    assert sum(each.purged for each in rounds) == 2
    assert sum(each.freed for each in rounds) == 6
    assert sum(each.expired + each.removed for each in rounds) == 3
    assert sum(each.failed for each in rounds) == 0
    async with database.read() as db:
        events = Counter(each.kind for each in (await moves.history(db, actor, "demo")).items)
    assert events == {EventKind.deleted: 5, EventKind.purged: 2}


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_a_version_of_2501_files_leaves_none(database: Database, store: BlobStore) -> None:
    actor = await an_account(database)
    prefix = await tiny_files(database, store, actor, MANY)
    beside = await tiny_files(database, store, actor, 1)
    assert len(await store.keys(prefix)) == MANY
    await delete(database, actor)
    done = await Keeper(database, store, grace=GRACE).round(at=now() + GRACE)
    assert done == Round(purged=1, freed=MANY)
    assert await store.keys(prefix) == []
    assert len(await store.keys(beside)) == 1


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_a_file_that_was_removed_by_hand_is_no_error(
    database: Database, store: BlobStore
) -> None:
    actor = await an_account(database)
    prefix = await tiny_files(database, store, actor, 3)
    await store.delete(f"{prefix}checkpoints/hf/0001.json")
    await delete(database, actor)
    done = await Keeper(database, store, grace=GRACE).round(at=now() + GRACE)
    assert done == Round(purged=1, freed=2)
    assert (await find(database, actor)).purged_at is not None
    assert await store.keys("") == []


@pytest.mark.parametrize("gone", [0, 700, MANY])
async def test_a_purge_that_was_killed_is_done_again(
    database: Database, url: str, minio: S3Server, tmp_path: Path, gone: int
) -> None:
    bucket = minio.fresh_bucket()
    store, actor = S3BlobStore(bucket), await an_account(database)
    prefix = await tiny_files(database, store, actor, MANY)
    await delete(database, actor)
    given = json.dumps({"name": bucket.name, "endpoint": bucket.endpoint})
    killed = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "support.purging", url, given, str(gone)],
        env={**environment(tmp_path), "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    left = await find(database, actor)
    assert (left.purged_at, left.freed, len(await store.keys(prefix))) == (None, MANY, MANY - gone)
    keeper, later = Keeper(database, store, grace=GRACE), now() + GRACE
    assert await keeper.round(at=later) == Round()  # the dead one may still be at it
    done = await keeper.round(at=later + deletion.PURGE_AGAIN_AFTER)
    assert done == Round(purged=1, freed=MANY)
    assert await store.keys("") == []
    assert (await find(database, actor)).purged_at is not None
