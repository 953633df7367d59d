"""The registry's REST in a process that kills itself at a chosen moment of the next change."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from sqlalchemy import Connection, event
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from registry.api import rest
from registry.api.idempotency import IdempotencyKeys
from registry.events.targets import Targets
from registry.kit.db import Database
from registry.kit.rest import add_error_handlers
from registry.kit.sockets import listen


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class BeforeTheAnswer:
    """All is committed, and nothing was said yet."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def deadly(message: Message) -> None:
            if scope["method"] != "GET":
                die()
            await send(message)

        await self._app(scope, receive, deadly if scope["type"] == "http" else send)


def before_the_commit(database: Database) -> None:
    """The first commit is of the key alone."""
    commits: list[Connection] = []

    @event.listens_for(database.engine.sync_engine, "commit")
    def count(connection: Connection) -> None:
        commits.append(connection)
        if len(commits) == 2:
            die()


async def main(url: str, moment: str, address: Path) -> None:
    app = FastAPI()
    app.state.database, app.state.targets = Database.connect(url), Targets()
    add_error_handlers(app)
    if moment == "before the answer":
        app.add_middleware(BeforeTheAnswer)
    else:
        before_the_commit(app.state.database)
    app.add_middleware(IdempotencyKeys)
    app.include_router(rest.router)
    with listen("127.0.0.1", 0) as listener:
        aside = address.with_suffix(".new")
        aside.write_text(f"http://127.0.0.1:{listener.getsockname()[1]}")
        aside.rename(address)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        await server.serve(sockets=[listener])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
