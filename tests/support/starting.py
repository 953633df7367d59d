"""What a `modelyard serve` does to its database as it starts, in a process of its own."""

import asyncio
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path

import httpx

from registry.access import service as access
from registry.settings import Settings
from session.app import create_app
from session.cli.installation import make_ready
from session.resources import open_database

_together: Barrier


@dataclass(frozen=True)
class Started:
    """The secret of the admin token that this server made, and what it answers to it, or to one
    that nobody has: either answer is looked up in the database."""

    secret: str | None
    status: int


def wait_for_each_other(barrier: Barrier) -> None:
    global _together
    _together = barrier


def start(url: str, home: Path) -> Started:
    """Returns to a process pool, each of whose workers begins at the same moment."""
    settings = Settings(home=home, database={"url": url})
    _together.wait(60)
    return asyncio.run(_start(settings))


async def _start(settings: Settings) -> Started:
    await make_ready(settings)
    database = open_database(settings)
    async with database.begin() as db:
        secret = await access.ensure_admin(db)
    await database.close()
    app = create_app(settings)
    headers = {"Authorization": f"Bearer {secret or 'my-nothing'}"}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client,
    ):
        return Started(secret, (await client.get("/v1/groups", headers=headers)).status_code)
