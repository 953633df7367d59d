"""The api's line to workers that are silent, deaf, hung or replaced."""

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from websockets.asyncio.server import ServerConnection, serve

from registry.kit.clock import now
from registry.kit.db import Database
from session.lifecycle.model import Worker
from session.worker import line
from session.worker.channel import WorkerChannel
from session.worker.line import Answered, Asked, Place, Question
from support.database import fresh_database
from support.waiting import until

PLACE = Place("s", "o", 1)
UUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # of RFC 6455


class Fake:
    """A worker that shakes hands, notes what it hears and says what it is told to."""

    def __init__(self) -> None:
        self.heard: list[Asked] = []
        self._sockets: list[ServerConnection] = []

    async def serve(self, socket: ServerConnection) -> None:
        self._sockets.append(socket)
        async for message in socket:
            assert isinstance(message, bytes)
            self.heard.append(msgspec.msgpack.decode(message, type=Asked))

    async def hang_up(self) -> None:
        await self._sockets[-1].close()

    async def answer(self, number: int, packed: bytes) -> None:
        await self._sockets[-1].send(msgspec.msgpack.encode(Answered(number, packed)))


@asynccontextmanager
async def listening(fake: Fake) -> AsyncIterator[str]:
    async with serve(fake.serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


Serving = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def raw(serving: Serving) -> AsyncIterator[str]:
    server = await asyncio.start_server(serving, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with fresh_database(tmp_path) as database:
        yield database


@pytest.fixture
async def channel(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[WorkerChannel]:
    monkeypatch.setattr("session.worker.channel._KNOWN_S", 0.0)  # it looks each time
    monkeypatch.setattr(line, "_CONNECT_S", 1.0)
    monkeypatch.setattr(line, "_SLACK_S", 0.2)
    channel = WorkerChannel(database)
    yield channel
    await channel.close()


async def add(database: Database, name: str, address: str) -> None:
    """The newest of those that are there."""
    number = int(name.removeprefix("w"))
    at = now() + timedelta(seconds=number)
    async with database.begin() as db:
        db.add(Worker(id=name, address=address, secret="x", heartbeat_at=at))


async def test_a_silent_worker_is_asked_once(database: Database, channel: WorkerChannel) -> None:
    fake = Fake()
    async with listening(fake) as address:
        await add(database, "w1", address)
        assert await channel.outcome(PLACE, 0.5) is None
        (asked,) = fake.heard
        assert isinstance(asked.what, Question)
        assert (asked.what.place, asked.what.offer) == (PLACE, None)


async def test_those_who_wait_for_a_line_share_its_failure(
    database: Database, channel: WorkerChannel
) -> None:
    calls: list[object] = []
    over = asyncio.Event()

    async def never_shakes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.append(writer)
        await over.wait()
        writer.close()

    async with raw(never_shakes) as address:
        await add(database, "w1", address)
        await asyncio.gather(*(channel.wake("s") for _ in range(20)))
        over.set()
    assert len(calls) == 1


async def test_a_worker_that_hangs_holds_up_nobody_once_another_is_there(
    database: Database, channel: WorkerChannel
) -> None:
    over = asyncio.Event()

    async def shakes_and_hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = head.partition("Sec-WebSocket-Key: ")[2].partition("\r\n")[0]
        accepted = base64.b64encode(hashlib.sha1((key + UUID).encode()).digest()).decode()
        lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"]
        lines += [f"Sec-WebSocket-Accept: {accepted}", "", ""]
        writer.write("\r\n".join(lines).encode())
        await over.wait()
        writer.close()

    fake = Fake()
    async with raw(shakes_and_hangs) as old, listening(fake) as new:
        await add(database, "w1", old)
        await channel.wake("s")
        await add(database, "w2", new)
        await channel.wake("s")
        await until(lambda: len(fake.heard) == 1)
        over.set()


async def test_a_question_is_answered_by_the_worker_that_has_it_though_another_is_newer(
    database: Database, channel: WorkerChannel
) -> None:
    older, newer = Fake(), Fake()
    async with listening(older) as first, listening(newer) as second:
        await add(database, "w1", first)
        asking = asyncio.create_task(channel.outcome(PLACE, 30))
        await until(lambda: len(older.heard) == 1)
        await add(database, "w2", second)
        await channel.wake("s")
        await until(lambda: len(newer.heard) == 1)
        await older.answer(older.heard[0].number, b"what it came to")
        assert await asking == b"what it came to"


async def test_a_question_is_asked_again_where_the_line_breaks(
    database: Database, channel: WorkerChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("session.worker.channel._KNOWN_S", 60.0)
    fake = Fake()
    async with listening(fake) as address:
        await add(database, "w1", address)
        await channel.wake("s")
        await until(lambda: len(fake.heard) == 1)
        asking = asyncio.create_task(channel.outcome(PLACE, 30))
        await until(lambda: len(fake.heard) == 2)
        await fake.hang_up()
        await until(lambda: len(fake.heard) == 3)
        await fake.answer(fake.heard[2].number, b"what it came to")
        assert await asking == b"what it came to"
