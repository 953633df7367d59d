"""A bucket behind a network that does its worst: what is in it, and what comes out, is the same."""

import asyncio
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry.artifacts.bucket import Bucket
from registry.artifacts.errors import StoreUnavailable
from registry.artifacts.parts import MIB, SMALLEST_PART
from registry.artifacts.s3 import S3BlobStore
from support.faulty import Fault, Once, Proxied, no_fault, proxy
from support.s3 import S3Server
from support.waiting import until

FETCH = """
import asyncio, pathlib, sys
from registry.artifacts.bucket import Bucket
from registry.artifacts.s3 import S3BlobStore

endpoint, name, path = sys.argv[1:]
store = S3BlobStore(Bucket(name=name, endpoint=endpoint, part_bytes=5 * 2**20, concurrency=1))
asyncio.run(store.fetch("a", pathlib.Path(path)))
"""
DATA = os.urandom(12 * MIB + 5)
PIECES = [DATA[start : start + SMALLEST_PART] for start in range(0, len(DATA), SMALLEST_PART)]


@pytest.fixture(params=["minio", "versitygw"])
def server(request: pytest.FixtureRequest) -> S3Server:
    found: S3Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


@contextmanager
def stored(bucket: Bucket, fault: Fault) -> Iterator[S3BlobStore]:
    """Its only way to the server leads through the fault."""
    with (
        proxy(str(bucket.endpoint), fault) as url,
        closing(S3BlobStore(replace(bucket, endpoint=url))) as store,
    ):
        yield store


def a_bucket(server: S3Server, **given: Any) -> Bucket:
    return server.fresh_bucket(**{"attempts": 4, "part_bytes": SMALLEST_PART, **given})


def lose_answers() -> Fault:
    """Every fifth arrives, and nobody hears of it."""
    numbers = iter(range(10_000))

    def fault(request: Proxied) -> bool:
        if next(numbers) % 5 != 2:
            return False
        request.passed_on()
        request.hang_up()
        return True

    return fault


def be_busy() -> Fault:
    """Three requests of every eight in a row."""
    numbers = iter(range(10_000))

    def fault(request: Proxied) -> bool:
        if next(numbers) % 8 >= 3:
            return False
        request.refuse(503, "SlowDown")
        return True

    return fault


def cut_bodies() -> Fault:
    def cut(request: Proxied) -> None:
        request.answer(request.passed_on(), cut_after=MIB + 1)

    return Once(lambda request: reads(request), cut, times=3)


def start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command)


def reads(request: Proxied) -> bool:
    return request.command == "GET" and "?" not in request.path


@pytest.mark.parametrize("make", [lose_answers, be_busy, cut_bodies])
async def test_no_fault_changes_a_result(
    server: S3Server, file: Path, make: Callable[[], Fault]
) -> None:
    with stored(a_bucket(server), make()) as store:
        await store.put_file("a/file", file)
        await store.put_bytes("a/bytes", b"x")
        upload = await store.begin_multipart("a/parts")
        parts = [await store.put_part("a/parts", upload, n, p) for n, p in enumerate(PIECES, 1)]
        assert await store.parts("a/parts", upload) == parts
        await store.finish_multipart("a/parts", upload, parts)
        digest = hashlib.sha256(DATA).hexdigest()
        assert await store.fetch("a/file", file.with_name("copy")) == digest
        assert file.with_name("copy").read_bytes() == await store.read("a/parts") == DATA
        sizes = [(each.key, each.size) for each in await store.objects("a/")]
    assert sizes == [("a/bytes", 1), ("a/file", len(DATA)), ("a/parts", len(DATA))]


async def test_lost_answers_of_a_part_and_of_the_end_make_one_object(server: S3Server) -> None:
    """O1: the second end finds no upload, or is told that all is well, as the server likes."""

    def is_one(request: Proxied) -> bool:
        ends = request.command == "POST" and "uploadId" in request.path
        return ends or "partNumber=2" in request.path

    def lose(request: Proxied) -> None:
        request.passed_on()
        request.hang_up()

    fault = Once(is_one, lose, times=2)
    with stored(a_bucket(server), fault) as store:
        upload = await store.begin_multipart("a")
        parts = [await store.put_part("a", upload, n, p) for n, p in enumerate(PIECES, 1)]
        await store.finish_multipart("a", upload, parts)
        assert fault.left == 0
        assert [(each.key, each.size) for each in await store.objects("")] == [("a", len(DATA))]
        assert hashlib.sha256(await store.read("a")).digest() == hashlib.sha256(DATA).digest()
        assert await store.unfinished("a") == []


async def test_an_interrupted_download_fetches_only_the_rest(server: S3Server, file: Path) -> None:
    bucket, target = a_bucket(server, attempts=1, concurrency=1), file.with_name("copy")

    def refuse(request: Proxied) -> None:
        request.refuse(503, "SlowDown")

    def is_second(request: Proxied) -> bool:
        return request.headers.get("Range", "").startswith(f"bytes={SMALLEST_PART}-")

    with stored(bucket, Once(is_second, refuse)) as store:
        await store.put_file("a", file)
        with pytest.raises(StoreUnavailable):
            await store.fetch("a", target)
        assert not target.exists()
    moved: list[int] = []
    with stored(bucket, no_fault) as store:
        digest = await store.fetch("a", target, progress=moved.append)
    assert digest == hashlib.sha256(DATA).hexdigest()
    assert target.read_bytes() == DATA
    assert sum(moved) == len(DATA) - SMALLEST_PART
    assert sorted(path.name for path in target.parent.iterdir()) == ["copy", "file"]


async def test_a_killed_download_is_gone_on_with_by_another_process(
    minio: S3Server, file: Path
) -> None:
    bucket, target = a_bucket(minio), file.with_name("copy")
    note = file.with_name(".copy.partial.json")
    process: list[subprocess.Popen[bytes]] = []

    def never_answer(request: Proxied) -> None:
        process[0].wait()

    def is_last(request: Proxied) -> bool:
        return request.headers.get("Range", "").startswith(f"bytes={2 * SMALLEST_PART}-")

    with (
        proxy(minio.endpoint, Once(is_last, never_answer)) as url,
        closing(S3BlobStore(bucket)) as store,
    ):
        await store.put_file("a", file)
        command = [sys.executable, "-c", FETCH, url, bucket.name, str(target)]
        process.append(start(command))
        await until(lambda: note.exists() and len(note.read_text().splitlines()) == 3)
        process[0].kill()
        process[0].wait()
        assert not target.exists()
        moved: list[int] = []
        await store.fetch("a", target, progress=moved.append)
    assert target.read_bytes() == DATA
    assert sum(moved) == len(DATA) - 2 * SMALLEST_PART


async def test_half_of_an_object_that_was_replaced_is_not_gone_on_with(
    minio: S3Server, file: Path
) -> None:
    bucket, target = a_bucket(minio, attempts=1, concurrency=1), file.with_name("copy")

    def refuse(request: Proxied) -> None:
        request.refuse(503, "SlowDown")

    def is_second(request: Proxied) -> bool:
        return request.headers.get("Range", "").startswith(f"bytes={SMALLEST_PART}-")

    with stored(bucket, Once(is_second, refuse)) as store:
        await store.put_file("a", file)
        with pytest.raises(StoreUnavailable):
            await store.fetch("a", target)
        await store.put_bytes("a", DATA[::-1])
        await store.fetch("a", target)
    assert target.read_bytes() == DATA[::-1]


async def test_many_that_fetch_to_one_place_all_succeed(server: S3Server, file: Path) -> None:
    with closing(S3BlobStore(a_bucket(server))) as store:
        await store.put_file("a", file)
        target = file.with_name("copy")
        found = await asyncio.gather(*(store.fetch("a", target) for _ in range(4)))
    assert set(found) == {hashlib.sha256(DATA).hexdigest()}
    assert target.read_bytes() == DATA
    assert sorted(path.name for path in target.parent.iterdir()) == ["copy", "file"]


async def test_a_cancelled_download_stops_and_keeps_what_has_come(
    minio: S3Server, file: Path
) -> None:
    loop, reached, cancelled = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def slow(request: Proxied) -> bool:
        if request.headers.get("Range", "").startswith(f"bytes={SMALLEST_PART}-"):
            loop.call_soon_threadsafe(reached.set)
            cancelled.wait(60)
        return False

    bucket, target = a_bucket(minio, concurrency=1), file.with_name("copy")
    with stored(bucket, slow) as store:
        await store.put_file("a", file)
        task = asyncio.create_task(store.fetch("a", target))
        await reached.wait()
        task.cancel()
        await asyncio.sleep(0)  # the task has heard of it
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        moved: list[int] = []
        await store.fetch("a", target, progress=moved.append)
    assert target.read_bytes() == DATA
    assert sum(moved) <= len(DATA) - SMALLEST_PART
