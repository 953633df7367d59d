"""How the api reaches the worker: wake, await an outcome, sample. Imports no engine."""

import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from time import monotonic
from urllib.parse import urlencode

import httpcore
import httpx
import msgspec

from registry.kit.db import Database
from session import wire
from session.lifecycle.errors import WorkerAway
from session.lifecycle.model import Worker
from session.lifecycle.repository import WorkerRepository
from session.operations.model import Operation, OperationStatus
from session.sampling.frames import Ask, Frame, decode

_KNOWN_S = 2.0
_AT_ONCE = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
_BROKEN = (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError)


class Place(msgspec.Struct, frozen=True):
    """Of an operation in its log."""

    session_id: str
    operation_id: str
    number: int


class Offer(msgspec.Struct, frozen=True):
    """What was just stored at a place: so much of it never changes, so nobody need read it."""

    kind: str
    client_token: str
    body_hash: str
    body: bytes | None
    body_key: str | None

    @classmethod
    def of(cls, stored: Operation) -> "Offer":
        return cls(**{name: getattr(stored, name) for name in cls.__struct_fields__})

    def operation(self, place: Place) -> Operation:
        return Operation(
            id=place.operation_id,
            session_id=place.session_id,
            number=place.number,
            status=OperationStatus.pending,
            **msgspec.structs.asdict(self),
        )


class Question(msgspec.Struct, frozen=True):
    place: Place
    seconds: float
    offer: Offer | None = None


class WorkerChannel:
    def __init__(self, database: Database) -> None:
        self._database = database
        # Without httpx: that takes as long as all the rest of an operation that computes nothing.
        self._pool = httpcore.AsyncConnectionPool(
            max_connections=None, max_keepalive_connections=64, socket_options=_AT_ONCE
        )
        self._known: Worker | None = None
        self._known_until = 0.0
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=2.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=False,  # never by a proxy
        )

    async def close(self) -> None:
        await self._pool.aclose()
        await self._http.aclose()

    async def wake(self, session_id: str | None = None) -> None:
        """A hint. The worker also looks by itself, so a lost one costs a second."""
        with suppress(WorkerAway):
            asked = urlencode({"session_id": session_id}) if session_id else ""
            await self._tell(f"/wake?{asked}")

    async def outcome(
        self, place: Place, seconds: float, *, offer: Offer | None = None
    ) -> wire.Operation | None:
        """Wake the session and wait for what the operation comes to. None where the worker can't
        tell, or not yet. An `offer` is made of what the log holds already."""
        question = msgspec.msgpack.encode(Question(place, seconds, offer))
        try:
            packed = await self._tell("/outcomes", content=question)
        except WorkerAway:
            return None
        return wire.unpack(packed, wire.Operation) if packed else None

    @asynccontextmanager
    async def sample(self, ask: Ask) -> AsyncIterator[AsyncIterator[Frame]]:
        """Frames of one request; leaving the block early cancels it on the worker."""
        worker = await self._newest()
        try:
            async with self._http.stream(
                "POST",
                f"{worker.address}/samples",
                content=msgspec.msgpack.encode(ask),
                headers={"Authorization": f"Bearer {worker.secret}"},
            ) as answer:
                answer.raise_for_status()
                async with aclosing(decode(answer.aiter_raw())) as frames:
                    yield frames
        except httpx.HTTPError as error:
            raise WorkerAway(type(error).__name__) from error

    async def _tell(self, path: str, content: bytes = b"") -> bytes:
        """The worker may be another one since it was looked up."""
        if self._known is not None and monotonic() < self._known_until:
            with suppress(WorkerAway):
                return await self._post(self._known, path, content)
        self._known = worker = await self._newest()
        self._known_until = monotonic() + _KNOWN_S
        return await self._post(worker, path, content)

    async def _newest(self) -> Worker:
        async with self._database.read() as db:
            worker = await WorkerRepository(db).newest()
        if worker is None:
            raise WorkerAway("it is starting")
        return worker

    async def _post(self, worker: Worker, path: str, content: bytes) -> bytes:
        try:
            answer = await self._pool.request(
                "POST",
                worker.address + path,
                content=content,
                headers={
                    "Authorization": f"Bearer {worker.secret}",
                    "Content-Length": str(len(content)),
                },
                extensions={"timeout": {"connect": 2.0}},
            )
        except _BROKEN as error:
            raise WorkerAway(type(error).__name__) from error
        if not 200 <= answer.status < 300:
            raise WorkerAway(f"it answered {answer.status}")
        return answer.content
