"""Sessions of a hosted service whose rows are made older than they are, and what keeps them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx
from sqlalchemy import select, update

from registry.kit.clock import now
from session.endings.keeper import Round, SessionKeeper
from session.endings.lifetimes import Lifetimes
from session.lifecycle.model import TrainingSession
from session.operations.model import Operation
from support.hosted import Hosted

LIFETIMES = Lifetimes(
    gap=timedelta(minutes=10),
    idle=timedelta(hours=4),
    age=timedelta(days=30),
    results=timedelta(days=7),
)
DAY, LONG = timedelta(days=1), timedelta(days=365)
TOKENS = {"dtype": "int64", "data": [5, 6, 7]}
DATA = [{"tokens": TOKENS, "inputs": {"target_tokens": TOKENS}}]
FORWARD_BACKWARD = {"type": "forward_backward", "data": DATA}
STEP = {"type": "optim_step"}
CLEAR = {"type": "clear_gradient"}


@dataclass(frozen=True)
class Lives:
    """What a test does with the sessions of one client."""

    service: Hosted
    client: httpx.AsyncClient

    def hold_saves(self) -> asyncio.Event:
        """What the engine saves is not written before this is set."""
        save, free = self.service.engine.save, asyncio.Event()

        async def slow(*given: Any, **named: Any) -> Any:
            writing = await save(*given, **named)

            async def rest() -> None:
                await free.wait()
                await writing

            return rest()

        self.service.engine.save = slow  # type: ignore[method-assign]
        return free

    async def start(self, name: str = "s1", **more: Any) -> dict[str, Any]:
        wanted = {"base_model": "tiny", "name": name, "group": "g1", **more}
        made = await self.client.post("/v1/sessions", json=wanted)
        assert made.status_code == 201, made.text
        found: dict[str, Any] = (await self.client.get(f"/v1/sessions/{name}?wait=20")).json()
        return found

    async def post(
        self, number: int, body: Any, *, name: str = "s1", token: str | None = None
    ) -> httpx.Response:
        form = {"number": number, "token": token or f"t{number}", "body": body}
        return await self.client.post(f"/v1/sessions/{name}/operations", json=form)

    async def submit(self, number: int, body: Any, *, name: str = "s1") -> str:
        answer = await self.post(number, body, name=name)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    async def ended(self, operation: str) -> dict[str, Any]:
        found: dict[str, Any] = {"status": "pending"}
        while found["status"] in ("pending", "running"):
            found = (await self.client.get(f"/v1/operations/{operation}?wait=20")).json()
        return found

    async def do(self, number: int, body: Any, *, name: str = "s1") -> dict[str, Any]:
        return await self.ended(await self.submit(number, body, name=name))

    async def show(self, name: str = "s1") -> dict[str, Any]:
        answer = await self.client.get(f"/v1/sessions/{name}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def names(self, status: str) -> Sequence[str]:
        rows = (await self.client.get(f"/v1/sessions?status={status}")).json()["data"]
        return [row["name"] for row in rows]

    async def age(self, by: timedelta = DAY) -> None:
        """As if all that happened until now had happened so long ago."""
        columns: dict[Any, tuple[str, ...]] = {
            TrainingSession: ("created_at", "last_active_at", "ended_at"),
            Operation: ("created_at", "started_at", "completed_at"),
        }
        async with self.service.database.begin() as db:
            for model, names in columns.items():
                for row in await db.scalars(select(model)):
                    moments = {name: getattr(row, name) for name in names}
                    older = {name: at - by for name, at in moments.items() if at is not None}
                    await db.execute(update(model).where(model.id == row.id).values(**older))

    async def keep(self, *, watched: timedelta = LONG, **lifetimes: timedelta) -> Round:
        """One round of a keeper that has been there for so long."""
        spans = {name: getattr(LIFETIMES, name) for name in LIFETIMES.__slots__} | lifetimes
        keeper = SessionKeeper(
            self.service.database, self.service.store, Lifetimes(**spans), since=now() - watched
        )
        keeper._looked_at = now()
        done = await keeper.round(at=now())
        assert done.failed == 0
        return done
