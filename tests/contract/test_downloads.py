"""A file over REST: whole, in ranges, or from the object store itself."""

from collections.abc import AsyncIterator
from contextlib import closing

import httpx
import pytest
from structlog.testing import capture_logs

from registry.artifacts.bucket import Bucket
from registry.artifacts.s3 import S3BlobStore
from registry.kit.db import Database
from support.registry_service import ADAPTER, BYTES, ENTRY, Service, is_problem, registry_service
from support.s3 import credentials

URL = f"/v1/groups/demo/versions/1/files/{ADAPTER}"


@pytest.fixture
async def service(database: Database) -> AsyncIterator[Service]:
    async with registry_service(database) as service:
        await service.publish()
        yield service


async def asked(service: Service, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await service.client.get(URL, headers=named)


@pytest.mark.parametrize(
    ("span", "content", "place"),
    [
        ("bytes=0-3", BYTES[:4], "bytes 0-3/8"),
        ("bytes=4-", BYTES[4:], "bytes 4-7/8"),
        ("bytes=7-7", BYTES[7:], "bytes 7-7/8"),
        ("bytes=2-100", BYTES[2:], "bytes 2-7/8"),
        ("bytes=-3", BYTES[-3:], "bytes 5-7/8"),
        ("bytes=-100", BYTES, "bytes 0-7/8"),
        ("bytes=0-99999999999999999999", BYTES, "bytes 0-7/8"),
        ("bytes=-99999999999999999999", BYTES, "bytes 0-7/8"),
        ("bytes=" + "0" * 99 + "4-" + "9" * 100, BYTES[4:], "bytes 4-7/8"),
    ],
)
async def test_a_range_is_answered_alone(
    service: Service, span: str, content: bytes, place: str
) -> None:
    answer = await asked(service, range=span)
    assert (answer.status_code, answer.content) == (206, content)
    assert answer.headers["content-range"] == place
    assert answer.headers["content-length"] == str(len(content))
    assert answer.headers["etag"] == f'"{ENTRY.sha256}"'


@pytest.mark.parametrize(
    "span",
    [
        *("bytes=8-", "bytes=100-200", "bytes=-0", "bytes=9999999999999999-"),
        *("bytes=99999999999999999998-99999999999999999999", "bytes=" + "9" * 100 + "-"),
    ],
)
async def test_a_range_without_a_byte_is_refused(service: Service, span: str) -> None:
    answer = await asked(service, range=span)
    assert "8 bytes" in is_problem(answer, 416, "malformed")
    assert answer.headers["content-range"] == "bytes */8"


@pytest.mark.parametrize(
    "span", ["bytes=3-1", "bytes=0-1,3-4", "items=0-1", "bytes=a-b", "bytes=-", "bytes=--1", ""]
)
async def test_what_is_no_single_range_means_the_whole_file(service: Service, span: str) -> None:
    answer = await asked(service, range=span)
    assert (answer.status_code, answer.content) == (200, BYTES)
    assert answer.headers["accept-ranges"] == "bytes"


@pytest.mark.parametrize(
    ("known", "status"),
    [(f'"{ENTRY.sha256}"', 206), ('"another"', 200), (f'W/"{ENTRY.sha256}"', 200)],
)
async def test_the_rest_of_another_file_is_not_sent(
    service: Service, known: str, status: int
) -> None:
    answer = await asked(service, range="bytes=4-", if_range=known)
    assert (answer.status_code, answer.content) == (status, BYTES[4:] if status == 206 else BYTES)


@pytest.mark.parametrize(
    ("known", "status"),
    [
        *((f'"{ENTRY.sha256}"', 304), (f'W/"{ENTRY.sha256}"', 304), ("*", 304), (" * ", 304)),
        *((f'"another", W/"{ENTRY.sha256}"', 304), ('"another"', 200), ('W/"another"', 200)),
        *((ENTRY.sha256, 200), ("", 200)),
    ],
)
async def test_a_file_that_is_known_already_is_not_sent(
    service: Service, known: str, status: int
) -> None:
    answer = await asked(service, if_none_match=known)
    assert (answer.status_code, answer.content) == (status, BYTES if status == 200 else b"")
    assert answer.headers["etag"] == f'"{ENTRY.sha256}"'


async def test_a_range_of_a_file_that_was_cut_is_refused(service: Service) -> None:
    await service.store.put_bytes(next(iter(await service.store.keys(""))), BYTES[:-1])
    answer = await asked(service, range="bytes=0-3")
    assert "7 bytes instead of 8" in is_problem(answer, 500, "internal")


async def test_a_store_that_is_away_is_not_described_to_a_caller(database: Database) -> None:
    """Nothing listens on port 9 of this machine. The log has all of it, for the operator."""
    bucket = Bucket("the-bucket", prefix="team", endpoint="http://127.0.0.1:9", attempts=1)
    with credentials(), closing(S3BlobStore(bucket)) as store, capture_logs() as logs:
        async with registry_service(database, away=store) as service:
            await service.publish()
            said = is_problem(await service.client.get(URL), 503, "unavailable")
    assert said == "the object store is not available: it refuses the connection"
    assert "http://127.0.0.1:9/the-bucket/team/" in logs[-1]["reason"]


async def test_a_store_that_is_reached_through_us_alone_redirects_nobody(service: Service) -> None:
    answer = await service.client.get(f"{URL}?redirect=true")
    assert (answer.status_code, answer.content) == (200, BYTES)
