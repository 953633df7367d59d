"""What only a bucket promises: real servers, and a network between that does its worst."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from registry.artifacts.bucket import Bucket
from registry.artifacts.errors import StoreRefused, StoreUnavailable
from registry.artifacts.parts import MIB
from registry.artifacts.s3 import S3BlobStore
from registry.artifacts.s3_client import make_client
from support.faulty import Fault, Once, Proxied, no_fault, proxy, refuse_chunked, self_signed
from support.s3 import S3Server, credentials

MEASURE = """
import asyncio, pathlib, re, sys
from registry.artifacts.bucket import Bucket
from registry.artifacts.s3 import S3BlobStore

def peak():  # not getrusage's, which begins with that of the process that started this one
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1))

async def main(endpoint, name, path, target):
    store = S3BlobStore(Bucket(name=name, endpoint=endpoint))
    await store.put_bytes("warm", b"x")
    before = peak()
    await store.put_file("big", pathlib.Path(path))
    await store.fetch("big", pathlib.Path(target))
    print((peak() - before) // 1024)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(params=["minio", "versitygw"])
def server(request: pytest.FixtureRequest) -> S3Server:
    found: S3Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Three parts."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(12 * MIB + 5))
    return path


@contextmanager
def behind(server: S3Server, fault: Fault, **given: Any) -> Iterator[S3BlobStore]:
    """A store whose only way to the server leads through the fault."""
    bucket = server.fresh_bucket(**{"attempts": 4, "part_bytes": 5 * MIB, **given})
    with (
        proxy(server.endpoint, fault) as url,
        closing(S3BlobStore(replace(bucket, endpoint=url))) as store,
    ):
        yield store


def content(path: Path) -> bytes:
    return path.read_bytes()


def download(url: str, span: str | None = None) -> httpx.Response:
    return httpx.get(url, headers={"Range": span} if span else None)


def gets_the_object(request: Proxied) -> bool:
    return request.command == "GET" and "list-type" not in request.path


async def test_chunked_uploads_are_not_needed(server: S3Server, file: Path, tmp_path: Path) -> None:
    """Over TLS the SDK as it comes sends them, and many servers answer 411."""
    certificate, context = self_signed(tmp_path)
    bucket = server.fresh_bucket(ca_bundle=certificate, attempts=1)
    with proxy(server.endpoint, refuse_chunked, tls=context) as url:
        bucket = replace(bucket, endpoint=url)
        as_it_comes = S3BlobStore(replace(bucket, checksums="when_supported"))
        with closing(as_it_comes), pytest.raises((StoreRefused, StoreUnavailable)):
            await as_it_comes.put_bytes("b", b"x")
        with closing(S3BlobStore(bucket)) as store:
            await store.put_file("a", file)
            await store.put_bytes("b", b"x")
            upload = await store.begin_multipart("c")
            part = await store.put_part("c", upload, 1, b"part")
            await store.finish_multipart("c", upload, [part])
            await store.fetch("a", tmp_path / "copy")
            assert content(tmp_path / "copy") == await store.read("a") == content(file)
            assert await store.read("c") == b"part"


async def test_a_signed_url_leads_to_the_public_endpoint(server: S3Server) -> None:
    bucket = server.fresh_bucket()
    with closing(S3BlobStore(bucket)) as store:
        await store.put_bytes("a b/ü", b"hello world")
    inside = replace(bucket, endpoint="http://s3.internal:9000", public_endpoint=server.endpoint)
    with closing(S3BlobStore(inside)) as store:
        signed = await store.signed_url("a b/ü", expires_s=100_000)
        assert signed.url.startswith(server.endpoint + "/")
        query = parse_qs(urlsplit(signed.url).query)
        assert (query["X-Amz-Algorithm"], query["X-Amz-Expires"]) == (["AWS4-HMAC-SHA256"], ["900"])
        assert download(signed.url).content == b"hello world"
        short = await store.signed_url("a b/ü", expires_s=4)
        assert download(short.url, "bytes=0-4").content == b"hello"
        await asyncio.sleep(5.1)
        assert download(short.url, "bytes=5-").status_code in (400, 403)
        again = await store.signed_url("a b/ü", expires_s=60)
        assert again.expires_at > short.expires_at
        assert download(again.url, "bytes=5-").content == b" world"


async def test_a_folder_of_2501_objects_goes_whole_and_alone(server: S3Server) -> None:
    with closing(S3BlobStore(server.fresh_bucket())) as store:
        await store.put_bytes("runs/10/kept", b"x")
        await asyncio.gather(*(store.put_bytes(f"runs/1/{n}", b"x") for n in range(2_501)))
        assert len(await store.keys("runs/1/")) == 2_501
        assert await store.delete_folder("runs/1/") == 2_501
        assert await store.keys("") == ["runs/10/kept"]


async def test_an_upload_whose_last_answer_is_lost_has_happened(
    server: S3Server, file: Path
) -> None:
    def completes(request: Proxied) -> bool:
        return request.command == "POST" and "uploadId" in request.path

    def lose(request: Proxied) -> None:
        request.passed_on()
        request.hang_up()

    with behind(server, Once(completes, lose)) as store:
        await store.put_file("a", file)
        assert await store.read("a") == content(file)
        assert await store.keys("") == ["a"]


async def test_lost_answers_and_503s_change_nothing(server: S3Server, file: Path) -> None:
    numbers = iter(range(10_000))

    def every_third(request: Proxied) -> bool:
        number = next(numbers)
        if number % 6 == 1:
            request.refuse(503, "SlowDown")
        elif number % 6 == 4:
            request.passed_on()
            request.hang_up()
        return number % 3 == 1

    with behind(server, every_third) as store:
        await store.put_file("a/1", file)
        await store.put_bytes("a/2", b"x")
        await store.fetch("a/1", file.with_name("copy"))
        assert content(file.with_name("copy")) == content(file)
        assert await store.keys("a/") == ["a/1", "a/2"]
        await store.delete_folder("a/")
        assert await store.keys("") == []


async def test_a_body_that_is_cut_is_read_on_from_there(server: S3Server, file: Path) -> None:
    def cut(request: Proxied) -> None:
        request.answer(request.passed_on(), cut_after=2 * MIB)

    fault = Once(gets_the_object, cut)
    with behind(server, fault) as store:
        await store.put_file("a", file)
        assert await store.read("a") == content(file)
        fault.left = 2
        await store.fetch("a", file.with_name("copy"))
    assert content(file.with_name("copy")) == content(file)


async def test_a_failed_download_leaves_no_file(server: S3Server, tmp_path: Path) -> None:
    def refuse(request: Proxied) -> None:
        request.refuse(503, "SlowDown")

    with behind(server, Once(gets_the_object, refuse, times=10**6), attempts=1) as store:
        await store.put_bytes("a", b"x" * MIB)
        with pytest.raises(StoreUnavailable, match="503 SlowDown"):
            await store.fetch("a", tmp_path / "new" / "a")
        with pytest.raises(StoreUnavailable, match="503 SlowDown"):
            await store.read("a")
    assert list((tmp_path / "new").iterdir()) == []


async def test_a_cancelled_upload_stops_and_leaves_no_parts(minio: S3Server, file: Path) -> None:
    reached, cancelled = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(request: Proxied) -> bool:
        if "partNumber" in request.path:
            loop.call_soon_threadsafe(reached.set)
            cancelled.wait(60)
        return False

    bucket = minio.fresh_bucket(part_bytes=5 * MIB, concurrency=1)
    with (
        proxy(minio.endpoint, slow) as url,
        closing(S3BlobStore(replace(bucket, endpoint=url))) as store,
        closing(make_client(bucket)) as client,
    ):
        task = asyncio.create_task(store.put_file("a", file))
        await reached.wait()
        task.cancel()
        await asyncio.sleep(0)  # the task has heard of it
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await store.keys("") == []
        found = client.list_multipart_uploads(Bucket=bucket.name, Prefix="a")
        assert found.get("Uploads", []) == []


async def test_what_the_store_refuses_is_said(minio: S3Server) -> None:
    bucket = replace(minio.fresh_bucket(), attempts=1)
    no_bucket, no_server = (
        S3BlobStore(replace(bucket, name="no-such-bucket")),
        S3BlobStore(replace(bucket, endpoint="http://127.0.0.1:9")),
    )
    with closing(no_bucket), pytest.raises(StoreRefused, match="NoSuchBucket: ") as refused:
        await no_bucket.put_bytes("a", b"x")
    with closing(no_server), pytest.raises(StoreUnavailable, match="Could not connect") as away:
        await no_server.size("a")
    assert refused.value.message == "the object store refuses: NoSuchBucket"
    assert away.value.message == "the object store is not available: it refuses the connection"


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        ("http://nobody.invalid", "its host name is not known"),
        ("http://127.0.0.1:9", "it refuses the connection"),
    ],
)
async def test_a_caller_is_told_the_kind_of_trouble_and_no_place(
    endpoint: str, reason: str
) -> None:
    bucket = Bucket("the-bucket", endpoint=endpoint, attempts=1)
    with (
        credentials(),
        closing(S3BlobStore(bucket)) as store,
        pytest.raises(StoreUnavailable) as away,
    ):
        await store.size("the-key")
    assert away.value.message == f"the object store is not available: {reason}"
    assert all(word in str(away.value) for word in (endpoint, "the-bucket", "the-key"))


async def test_a_certificate_of_a_private_authority_needs_its_bundle(
    minio: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, context = self_signed(tmp_path)
    with proxy(minio.endpoint, no_fault, tls=context) as url:
        bucket = replace(minio.fresh_bucket(), endpoint=url, attempts=1)
        with (
            closing(S3BlobStore(bucket)) as store,
            pytest.raises(StoreUnavailable, match=r"not trusted.*MODELYARD_OBJECTS__CA_BUNDLE"),
        ):
            await store.put_bytes("a", b"x")
        with closing(S3BlobStore(replace(bucket, ca_bundle=certificate))) as store:
            await store.put_bytes("a", b"x")
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
        with closing(S3BlobStore(bucket)) as store:
            assert await store.read("a") == b"x"


def test_memory_does_not_grow_with_the_file(minio: S3Server, tmp_path: Path) -> None:
    bucket, big = minio.fresh_bucket(), tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(512 * MIB)
    words = [minio.endpoint, bucket.name, str(big), str(tmp_path / "copy")]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 256
    assert (tmp_path / "copy").stat().st_size == 512 * MIB
