"""What every part of a worker needs, and the little that they share."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog
from safetensors import SafetensorError
from sqlalchemy.ext.asyncio import AsyncSession

from registry.artifacts.errors import BlobNotFound, CorruptArtifact, StoreRefused
from registry.artifacts.store import BlobStore
from registry.kit.db import Database
from registry.kit.errors import Kind, ServiceError
from registry.kit.trouble import DatabaseTrouble
from registry.models import service as models
from session import wire
from session.checkpoints import ADAPTER, Stored, on_disk
from session.engine.port import BaseRef, Engine, EngineError
from session.worker.bases import Bases

T = TypeVar("T")
Work = Callable[[AsyncSession], Awaitable[T]]

log = structlog.get_logger()
_LONGEST_PAUSE_S = 5.0
_OF_RUST = re.compile(r"I/O error: (.+?) \(os error \d+\)")  # what Python knows as OSError


@dataclass(slots=True)
class Context:
    worker_id: str
    database: Database
    store: BlobStore
    engine: Engine
    workdir: Path
    done: "Announcements" = field(default_factory=lambda: Announcements())
    bases: Bases = field(init=False)

    def __post_init__(self) -> None:
        self.bases = Bases(lambda name: self.look(lambda db: models.require_base_model(db, name)))

    async def change(self, work: Work[T], *, keyed: bool = False) -> T:
        """One transaction, done again while the database is busy or away: that is no session's
        fault. A commit whose answer was lost is done again too, so `work` must bear that."""
        return await _outlasting(partial(self.database.begin, keyed=keyed), work)

    async def look(self, work: Work[T]) -> T:
        """The same, to read only."""
        return await _outlasting(self.database.read, work)


async def _outlasting(
    open_transaction: Callable[[], AbstractAsyncContextManager[AsyncSession]], work: Work[T]
) -> T:
    pause = 0.1
    while True:
        try:
            async with open_transaction() as db:
                return await work(db)
        except DatabaseTrouble as error:
            log.warning("database.away", reason=str(error), again_in_s=pause)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


class News:
    """That an operation has ended, and as what, where whoever tells it has that at hand."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.outcome: wire.Operation | None = None


class Announcements:
    """Who waits for an operation to end. It is told once the end is committed."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[News]] = {}

    def announce(self, operation_id: str, outcome: wire.Operation | None = None) -> None:
        for news in self._waiting.get(operation_id, ()):
            news.outcome = outcome
            news.ended.set()

    @asynccontextmanager
    async def listening(self, operation_id: str) -> AsyncIterator[News]:
        news = News()
        self._waiting.setdefault(operation_id, set()).add(news)
        try:
            yield news
        finally:
            waiting = self._waiting[operation_id]
            waiting.discard(news)
            if not waiting:
                del self._waiting[operation_id]


def failure(error: Exception) -> wire.Failure:
    """What a client may read of an error: the engine's and the service's own words, no others."""
    match error:
        case EngineError():
            return wire.Failure(Kind.invalid, str(error))
        case ServiceError():
            if not error.is_whole:
                log.warning("failure.shortened", reason=str(error))
            return wire.Failure(error.kind, error.message)
        case OSError():
            reason = error.strerror or type(error).__name__
            return wire.Failure(Kind.unavailable, f"storage: {reason}")
        case SafetensorError() if told := _OF_RUST.search(str(error)):
            return wire.Failure(Kind.unavailable, f"storage: {told[1]}")
        case _:
            return wire.Failure(Kind.internal, "unexpected error; the worker's log has it")


def is_away(error: Exception) -> bool:
    """What storage raises that is not there for now. The local store's objects, and the files of
    a base, are missing one by one while their disk is."""
    if isinstance(error, ServiceError):
        return error.kind == Kind.unavailable or isinstance(error, BlobNotFound)
    return isinstance(error, OSError)


def can_be_repaired(error: Exception) -> bool:
    """What an operator can put right: storage that is away, or holds other bytes than it did."""
    return is_away(error) or isinstance(error, CorruptArtifact | StoreRefused)


class Adapters:
    """Adapters that the engine holds for sampling, newest used last; none goes while in use."""

    def __init__(self, context: Context, *, limit: int = 32) -> None:
        self._context = context
        self._limit = limit
        self._users: dict[str, int] = {}
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def using(self, adapter_id: str, base: BaseRef, found: Stored) -> AsyncIterator[None]:
        """Load the adapter if need be and keep it while the block runs."""
        async with self._lock:
            if adapter_id not in self._users:
                await self._load(adapter_id, base, found)
            self._users[adapter_id] = self._users.pop(adapter_id, 0) + 1
        try:
            yield
        finally:
            self._users[adapter_id] -= 1
            await self._trim()

    async def _load(self, adapter_id: str, base: BaseRef, found: Stored) -> None:
        context = self._context
        async with on_disk(context.store, found.parts(ADAPTER), context.workdir) as files:
            await context.engine.load_adapter(adapter_id, base=base, source=files / ADAPTER)

    async def _trim(self) -> None:
        async with self._lock:
            idle = [adapter_id for adapter_id, users in self._users.items() if not users]
            for adapter_id in idle[: max(0, len(self._users) - self._limit)]:
                del self._users[adapter_id]
                await self._context.engine.drop(adapter_id)
