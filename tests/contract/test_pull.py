"""`pull` from the object store itself, over a network that does its worst."""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

import modelyard
from support.faulty import Fault, Once, Proxied, proxy
from support.hosted import Hosted
from support.s3 import S3Server
from support.service import environment
from support.uploads import MIB, Outside, taking

NOTES = "checkpoints/hf/notes.txt"


@pytest.fixture
def outside(tmp_path: Path) -> Outside:
    return Outside(tmp_path)


@asynccontextmanager
async def behind(
    minio: S3Server, outside: Outside, home: Path, fault: Fault
) -> AsyncIterator[Hosted]:
    """Clients reach the bucket through the fault, the service reaches it directly."""
    with proxy(minio.endpoint, fault) as url:
        async with taking(home, outside, minio, public_endpoint=url) as service:
            await calling(service, lambda client: client.push(outside.path).result())
            yield service


async def calling(service: Hosted, work: Callable[[modelyard.ServiceClient], object]) -> None:
    key = service.headers["Authorization"].removeprefix("Bearer ")

    def run() -> None:
        with modelyard.ServiceClient(service.url, key, group="facts", timeout=30) as client:
            work(client)

    await asyncio.to_thread(run)


def reads_notes(request: Proxied) -> bool:
    return request.command == "GET" and "notes.txt" in request.path


async def test_a_redirect_leads_to_the_public_endpoint_for_a_while(
    minio: S3Server, outside: Outside, tmp_path: Path
) -> None:
    async with behind(minio, outside, tmp_path / "home", lambda request: False) as service:
        async with service.client() as client:
            answer = await client.get(f"/v1/groups/facts/versions/1/files/{NOTES}?redirect=true")
        assert (answer.status_code, answer.headers["cache-control"]) == (307, "no-store")
        url = answer.headers["location"]
        assert urlsplit(url).hostname == "127.0.0.1"
        assert urlsplit(url).port not in (urlsplit(minio.endpoint).port, urlsplit(service.url).port)
        assert parse_qs(urlsplit(url).query)["X-Amz-Expires"] == ["900"]
        async with httpx.AsyncClient() as nobody:
            found = await nobody.get(url, headers={"Range": "bytes=5-8"})
    assert found.content == (outside.path / "notes.txt").read_bytes()[5:9]


def outlive_second(address: str) -> None:
    """Two addresses signed in one second are the same: the next one is to be another."""
    (signed,) = parse_qs(urlsplit(address).query)["X-Amz-Date"]
    moment = datetime.strptime(signed, "%Y%m%dT%H%M%S%z").timestamp()
    time.sleep(max(0.0, moment + 1 - time.time()))


async def test_a_download_goes_on_with_a_fresh_address_when_one_has_expired(
    minio: S3Server, outside: Outside, tmp_path: Path
) -> None:
    """O5: each address is good for one answer, of five MiB; the file has twelve."""
    spent: set[str] = set()
    ranges: list[str] = []

    def serve_once(request: Proxied) -> bool:
        if not reads_notes(request):
            return False
        if request.path in spent:
            outlive_second(request.path)
            request.refuse(403, "AccessDenied")
            return True
        spent.add(request.path)
        ranges.append(request.headers.get("Range", ""))
        request.answer(request.passed_on(), cut_after=5 * MIB)
        return True

    async with behind(minio, outside, tmp_path / "home", serve_once) as service:
        await calling(service, lambda client: client.pull("facts@1", tmp_path / "out").result())
    assert (tmp_path / "out" / NOTES).read_bytes() == (outside.path / "notes.txt").read_bytes()
    assert ranges[0] == ""
    assert len(ranges) > 1
    assert all(each.startswith("bytes=") and each != "bytes=0-" for each in ranges[1:])


async def test_a_store_that_does_not_answer_clients_is_read_through_the_service(
    minio: S3Server, outside: Outside, tmp_path: Path
) -> None:
    def hang_up(request: Proxied) -> bool:
        if request.command == "GET":
            request.hang_up()
        return request.command == "GET"

    async with behind(minio, outside, tmp_path / "home", hang_up) as service:
        await calling(service, lambda client: client.pull("facts@1", tmp_path / "out").result())
    assert (tmp_path / "out" / NOTES).read_bytes() == (outside.path / "notes.txt").read_bytes()


async def test_a_killed_pull_is_gone_on_with_by_another_process(
    minio: S3Server, outside: Outside, tmp_path: Path
) -> None:
    ranges: list[str] = []
    reached, killed = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def cut_then_hang(request: Proxied) -> None:
        ranges.append(request.headers.get("Range", ""))
        if len(ranges) == 1:
            request.answer(request.passed_on(), cut_after=5 * MIB)
            return
        loop.call_soon_threadsafe(reached.set)
        asyncio.run_coroutine_threadsafe(killed.wait(), loop).result()

    def notice(request: Proxied) -> bool:
        if reads_notes(request) and killed.is_set():
            ranges.append(request.headers.get("Range", ""))
        return False

    hanging = Once(reads_notes, cut_then_hang, times=2)

    def fault(request: Proxied) -> bool:
        return hanging(request) or notice(request)

    async with behind(minio, outside, tmp_path / "home", fault) as service:
        command = [sys.executable, "-m", "session", "pull", "facts@1", str(tmp_path / "out")]
        key = service.headers["Authorization"].removeprefix("Bearer ")
        variables = {
            **environment(tmp_path / "client"),
            "MODELYARD_URL": service.url,
            "MODELYARD_API_KEY": key,
        }
        first = await asyncio.create_subprocess_exec(*command, env=variables)
        await asyncio.wait_for(reached.wait(), 60)
        os.kill(first.pid, signal.SIGKILL)
        await first.wait()
        killed.set()
        assert not (tmp_path / "out" / NOTES).exists()
        second = await asyncio.create_subprocess_exec(*command, env=variables)
        assert await second.wait() == 0
    assert (tmp_path / "out" / NOTES).read_bytes() == (outside.path / "notes.txt").read_bytes()
    assert ranges[-1] == ranges[1] != ""
    assert list((tmp_path / "out").rglob("*.partial")) == []


async def test_an_address_of_the_store_is_never_logged(
    minio: S3Server, outside: Outside, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with taking(tmp_path / "home", outside, minio) as service:
        await calling(service, lambda client: client.push(outside.path).result())
        await calling(service, lambda client: client.pull("facts@1", tmp_path / "out").result())
    assert "redirect=true" in caplog.text
    assert "X-Amz-Signature" not in caplog.text


async def test_half_a_file_of_another_version_is_fetched_again(
    minio: S3Server, outside: Outside, tmp_path: Path
) -> None:
    half = (tmp_path / "out" / NOTES).with_name(".notes.txt.partial")
    half.parent.mkdir(parents=True)
    half.write_bytes(b"other" * 1000)
    async with behind(minio, outside, tmp_path / "home", lambda request: False) as service:
        await calling(service, lambda client: client.pull("facts@1", tmp_path / "out").result())
    assert (tmp_path / "out" / NOTES).read_bytes() == (outside.path / "notes.txt").read_bytes()
