"""Whatever happens, the answer is a problem that the caller can read."""

import errno
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import structlog
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from registry.kit.rest import Form, HeadAsGet, add_error_handlers
from registry.kit.trouble import DatabaseTrouble


class Wish(Form):
    name: str
    metadata: dict[str, str] = {}  # noqa: RUF012 - Pydantic copies it


ended: list[str] = []


def application() -> FastAPI:
    app = FastAPI()
    add_error_handlers(app)
    app.add_middleware(HeadAsGet)

    @app.post("/wish")
    async def wish(body: Wish) -> Wish:
        return body

    @app.post("/only-posted")
    async def only_posted() -> None: ...

    @app.get("/wish")
    async def wishes() -> None: ...

    @app.get("/failed")
    async def failed(reason: str) -> None:
        if reason == "bug":
            raise ValueError(reason)
        if reason == "disk":
            raise OSError(errno.ENOSPC, "No space left on device")
        raise DatabaseTrouble(reason, is_full=reason == "full")

    @app.get("/file")
    async def file() -> StreamingResponse:
        return StreamingResponse(parts(), headers={"Content-Length": "9", "ETag": "x"})

    return app


async def parts() -> AsyncIterator[bytes]:
    try:
        for part in (b"one", b"two", b"end"):
            yield part
        ended.append("whole")
    finally:
        ended.append("closed")


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(application(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


@pytest.fixture
def _silent() -> Iterator[None]:
    """A log whose every line fails."""

    def fail(*_: Any) -> Any:
        raise OSError("Broken pipe")

    structlog.configure(processors=[fail])
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("_silent")
@pytest.mark.parametrize(
    ("reason", "status", "said"),
    [
        ("bug", 500, "unexpected error"),
        ("locked", 503, "busy or not reachable"),
        ("full", 503, "storage is full"),
        ("disk", 503, "storage is full"),
    ],
)
async def test_an_error_is_answered_though_it_cannot_be_logged(
    client: httpx.AsyncClient, reason: str, status: int, said: str
) -> None:
    answer = await client.get("/failed", params={"reason": reason})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert said in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (rb'{"name": "\ud800"}', "name"),
        (rb'{"name": "a", "metadata": {"k": "\udc00"}}', "metadata.k"),
        (rb'{"name": "a", "metadata": {"\ud800": "v"}}', "metadata"),
        (rb'{"name": "a", "\ud800": "v"}', "body"),
    ],
)
async def test_text_that_is_not_unicode_is_refused_by_field(
    client: httpx.AsyncClient, body: bytes, field: str
) -> None:
    headers = {"content-type": "application/json"}
    answer = await client.post("/wish", content=body, headers=headers)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(f"{field}: ")


async def test_a_body_that_is_no_json_is_malformed(client: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/json"}
    answer = await client.post("/wish", content=b'{"name": nope}', headers=headers)
    assert (answer.status_code, answer.json()["kind"]) == (400, "malformed")
    assert answer.json()["detail"] == "body: is not JSON: Expecting value at character 9"


async def test_head_has_the_headers_of_get_and_no_body(client: httpx.AsyncClient) -> None:
    ended.clear()
    got, head = await client.get("/file"), await client.head("/file")
    assert (head.status_code, head.headers, head.content) == (200, got.headers, b"")
    assert ended.count("whole") == 1  # the file is not read for HEAD
    missing = await client.head("/missing")
    assert (missing.status_code, missing.content) == (404, b"")
    assert (await client.head("/only-posted")).status_code == 405


async def test_a_method_that_is_not_allowed_is_told_all_that_are(client: httpx.AsyncClient) -> None:
    answer = await client.delete("/wish")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")
