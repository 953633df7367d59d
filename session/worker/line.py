"""A WebSocket from the api to a worker, on which many questions are under way at once."""

import asyncio
from itertools import count

import msgspec
import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from session.lifecycle.errors import WorkerAway
from session.lifecycle.model import Worker
from session.operations.model import Operation, OperationStatus

log = structlog.get_logger()
LINE = "/line"
_CONNECT_S = 2.0
_HINT_S = 2.0
_SLACK_S = 5.0  # for the way of an answer that takes as long as it may


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


class Question(msgspec.Struct, frozen=True, tag=True):
    """What comes of the operation at this place, within so many seconds? Answered with its packed
    form, or nothing."""

    place: Place
    seconds: float
    offer: Offer | None = None


class Wake(msgspec.Struct, frozen=True, tag=True):
    """There is news in the database, of this session or of any. It is not answered."""

    session_id: str | None = None


class Asked(msgspec.Struct, frozen=True, array_like=True):
    number: int
    what: Question | Wake


class Answered(msgspec.Struct, frozen=True, array_like=True):
    number: int
    packed: bytes


class Line:
    """Every method raises WorkerAway once it is broken."""

    def __init__(self, worker_id: str, socket: ClientConnection) -> None:
        self.worker_id = worker_id
        self._socket = socket
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[bytes | None]] = {}
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, worker: Worker) -> "Line":
        url = f"ws{worker.address.removeprefix('http')}{LINE}"
        try:
            socket = await connect(
                url,
                additional_headers={"Authorization": f"Bearer {worker.secret}"},
                open_timeout=_CONNECT_S,
                close_timeout=_CONNECT_S,
                compression=None,
                max_size=None,  # a result is as large as the batch that it is of
                proxy=None,
            )
        except (OSError, WebSocketException) as error:
            raise WorkerAway(type(error).__name__) from error
        return cls(worker.id, socket)

    @property
    def is_open(self) -> bool:
        return not self._reading.done()

    async def ask(self, question: Question) -> bytes:
        """Empty where nothing comes in time."""
        number = next(self._numbers)
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            async with asyncio.timeout(question.seconds + _SLACK_S):
                await self._send(Asked(number, question))
                packed = await answer
        except TimeoutError:
            return b""
        finally:
            del self._waiting[number]
        if packed is None:
            raise WorkerAway("it hung up")
        return packed

    async def wake(self, session_id: str | None) -> None:
        try:
            async with asyncio.timeout(_HINT_S):
                await self._send(Asked(next(self._numbers), Wake(session_id)))
        except TimeoutError:
            raise WorkerAway("it does not listen") from None

    async def retire(self) -> None:
        """Close, once nobody waits for an answer: a worker that is no longer the newest may still
        be at work."""
        if self._waiting:
            await asyncio.wait(set(self._waiting.values()))
        await self.close()

    async def close(self) -> None:
        await self._socket.close()
        await self._reading

    async def _send(self, asked: Asked) -> None:
        try:
            if not self.is_open:
                raise WorkerAway("it hung up")
            await self._socket.send(msgspec.msgpack.encode(asked))
        except ConnectionClosed as error:
            raise WorkerAway("it hung up") from error

    async def _read(self) -> None:
        """Whatever ends it, nobody waits for an answer any more."""
        try:
            while True:
                message = await self._socket.recv(decode=False)
                answered = msgspec.msgpack.decode(message, type=Answered)
                answer = self._waiting.get(answered.number)
                if answer is not None and not answer.done():
                    answer.set_result(answered.packed)
        except ConnectionClosed:
            return
        except msgspec.MsgspecError as error:
            log.exception("line.misread", worker=self.worker_id, exc_info=error)
            self._socket.transport.abort()
        finally:
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_result(None)
