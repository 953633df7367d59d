"""The whole service in this process: api and worker on loopback, around a FakeEngine."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from exporters import hf_model
from registry.access import service as access
from registry.access.actor import Role
from registry.artifacts.store import BlobStore
from registry.kit import migrate
from registry.kit.db import Database
from registry.kit.sockets import listen
from registry.models import service as models
from registry.settings import Settings
from session.app import create_app
from session.cli.installation import migrations, open_home
from session.cli.signals import Server
from session.resources import open_database, open_store, scratch_path
from session.worker.context import Context
from session.worker.process import Worker
from session.worker.server import create_channel
from support.engines import FakeEngine
from support.waiting import until


@dataclass
class Hosted:
    url: str
    database: Database
    store: BlobStore
    engine: FakeEngine
    worker: Worker
    headers: dict[str, str]

    def client(self, headers: dict[str, str] | None = None) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.url, headers=headers or self.headers, trust_env=False, timeout=60
        )

    async def token(
        self, account: str, role: Role = Role.member, expires_at: datetime | None = None
    ) -> dict[str, str]:
        """Headers that speak for an account, which is made where it is missing."""
        async with self.database.begin() as db:
            known = {each.name: each for each in await access.accounts(db)}
            owner = known.get(account) or await access.create_account(db, name=account)
            _, secret = await access.create_token(
                db, account_id=owner.id, name="t", role=role, expires_at=expires_at
            )
        return {"Authorization": f"Bearer {secret}"}


@asynccontextmanager
async def hosted(
    home: Path, *, model: Path, database_url: str | None = None, **settings: Any
) -> AsyncIterator[Hosted]:
    """It knows the base model `tiny`, and speaks for the account `default`."""
    chosen = Settings(home=home, database={"url": database_url}, **settings)
    open_home(chosen)
    await migrate.ensure(chosen.database_url(), migrations())
    database, store, engine = open_database(chosen), open_store(chosen), FakeEngine()
    async with database.begin() as db:
        secret = await access.ensure_admin(db)
        await models.add(db, name="tiny", inspected=hf_model.inspect(model))
    worker = Worker(Context("wrk_test", database, store, engine, scratch_path(chosen)))
    async with listening(create_channel(worker, secret="hush")) as channel:
        await worker.start(address=channel, secret="hush")
        async with listening(create_app(chosen)) as url:
            headers = {"Authorization": f"Bearer {secret}"}
            yield Hosted(url, database, store, engine, worker, headers)
        await worker.close()
    await database.close()


@asynccontextmanager
async def listening(app: FastAPI) -> AsyncIterator[str]:
    """Serve `app` in this loop on a free port; yield its URL."""
    with listen("127.0.0.1", 0) as listener:
        server = Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=2,
                ws="websockets-sansio",
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await serving
