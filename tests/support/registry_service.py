"""The registry's REST alone, in this process, around a database and a store in memory."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx
from fastapi import FastAPI

from registry.access import service as access
from registry.access.actor import Actor, Role
from registry.api import rest
from registry.api.auth import require_permissions
from registry.api.idempotency import IdempotencyKeys
from registry.artifacts.manifest import FileEntry
from registry.artifacts.memory import MemoryBlobStore
from registry.artifacts.store import BlobStore
from registry.events.targets import Targets
from registry.kit.db import Database
from registry.kit.rest import add_error_handlers
from support.packages import a_version

ADAPTER = "checkpoints/hf/adapter_config.json"
BYTES = b'{"r": 4}'
GRACE = timedelta(days=7)
ENTRY = FileEntry(ADAPTER, len(BYTES), hashlib.sha256(BYTES).hexdigest())


@dataclass
class Service:
    database: Database
    store: MemoryBlobStore
    client: httpx.AsyncClient
    alice: Actor

    async def publish(self, **changes: Any) -> str:
        """Alice's next version, with one real file; returns where that file lies."""
        async with self.database.begin() as db:
            package = await a_version(db, self.alice, files=[ENTRY], **changes)
        await self.store.put_bytes(package.prefix + ADAPTER, BYTES)
        return package.prefix + ADAPTER

    async def token(self, role: Role, account: str | None = None, **changes: Any) -> dict[str, str]:
        async with self.database.begin() as db:
            owner = account or self.alice.account_id
            token, secret = await access.create_token(
                db, account_id=owner, name="t", role=role, **changes
            )
        return {"Authorization": f"Bearer {secret}", "X-Token-Id": token.id}


@asynccontextmanager
async def registry_service(
    database: Database, *, targets: Targets | None = None, away: BlobStore | None = None
) -> AsyncIterator[Service]:
    app, store = FastAPI(), MemoryBlobStore()
    add_error_handlers(app)
    app.add_middleware(IdempotencyKeys)
    app.include_router(rest.router)
    require_permissions(app)
    app.state.database, app.state.store = database, away or store
    app.state.targets, app.state.grace = targets or Targets(), GRACE
    async with database.begin() as db:
        account = await access.create_account(db, name="alice")
        _, secret = await access.create_token(db, account_id=account.id, name="t", role=Role.member)
    headers = {"Authorization": f"Bearer {secret}"}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://test", headers=headers
    ) as client:
        yield Service(database, store, client, Actor(account.id, Role.member))


def is_problem(answer: httpx.Response, status: int, kind: str) -> str:
    """Check the shape of an error; return what it says."""
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert set(body) == {"title", "status", "detail", "kind"}
    assert (body["status"], body["kind"]) == (status, kind)
    return str(body["detail"])
