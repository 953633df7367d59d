import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from registry.kit.stopping import AnswersWhenStopping


@pytest.fixture
def stopping() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
async def client(stopping: asyncio.Event) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    app.add_middleware(AnswersWhenStopping, stopping=stopping)

    @app.get("/held")
    async def held(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "news"

    @app.get("/broken")
    async def broken() -> None:
        raise ValueError("a fault of ours")

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def test_a_held_request_is_told_that_the_service_stops(
    client: httpx.AsyncClient, stopping: asyncio.Event
) -> None:
    asked = asyncio.create_task(client.get("/held?seconds=60"))
    await asyncio.sleep(0.1)
    stopping.set()
    answer = await asyncio.wait_for(asked, 10)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert answer.json()["kind"] == "unavailable"


async def test_a_request_that_is_nearly_done_gets_its_answer(
    client: httpx.AsyncClient, stopping: asyncio.Event
) -> None:
    asked = asyncio.create_task(client.get("/held?seconds=0.3"))
    await asyncio.sleep(0.1)
    stopping.set()
    assert (await asked).json() == "news"


async def test_an_answer_that_has_begun_is_left_unfinished(stopping: asyncio.Event) -> None:
    """The server then breaks the connection, which tells the client that the rest is missing."""
    sent: list[Message] = []

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        stopping.set()
        await asyncio.sleep(60)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await AnswersWhenStopping(stream, stopping=stopping)({"type": "http"}, receive, send)
    assert [message.get("more_body") for message in sent] == [None, True]


async def test_an_error_is_still_the_applications(client: httpx.AsyncClient) -> None:
    with pytest.raises(ValueError, match="a fault of ours"):
        await client.get("/broken")
