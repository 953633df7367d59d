"""How the api reaches the worker: wake, wait, sample. Imports no engine."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress

import httpx
import msgspec

from registry.kit.db import Database
from session.lifecycle.errors import WorkerAway
from session.lifecycle.model import Worker
from session.lifecycle.repository import WorkerRepository
from session.sampling.frames import Ask, Frame, decode


class WorkerChannel:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=2.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=False,  # never by a proxy
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def wake(self, session_id: str | None = None) -> None:
        """A hint. The worker also looks by itself, so a lost one costs a second."""
        with suppress(httpx.HTTPError, WorkerAway):
            worker = await self._worker()
            params = {"session_id": session_id} if session_id else {}
            await self._post(worker, "/wake", params=params)

    async def wait(self, operation_id: str, seconds: float) -> bool:
        """True when the worker says that the operation has ended; False when it can't tell."""
        try:
            worker = await self._worker()
            answer = await self._post(
                worker, f"/wait/{operation_id}", params={"seconds": str(seconds)}
            )
        except (httpx.HTTPError, WorkerAway):
            return False
        return bool(answer.json()["ended"])

    @asynccontextmanager
    async def sample(self, ask: Ask) -> AsyncIterator[AsyncIterator[Frame]]:
        """Frames of one request; leaving the block early cancels it on the worker."""
        worker = await self._worker()
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

    async def _worker(self) -> Worker:
        async with self._database.read() as db:
            worker = await WorkerRepository(db).newest()
        if worker is None:
            raise WorkerAway("it is starting")
        return worker

    async def _post(self, worker: Worker, path: str, *, params: dict[str, str]) -> httpx.Response:
        answer = await self._http.post(
            worker.address + path,
            params=params,
            headers={"Authorization": f"Bearer {worker.secret}"},
        )
        return answer.raise_for_status()
