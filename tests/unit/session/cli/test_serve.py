"""What runs beside the interfaces goes on, or the service ends with it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from registry.kit.db import Database
from registry.kit.sockets import listen
from registry.settings import Settings
from session.cli import serve
from session.cli.serve import BackgroundEnded, Supervisor


class Away(Database):
    """Fails as nobody expected."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.times = 0

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[None]:  # type: ignore[override]  # it never yields
        self.times += 1
        if self.times > 1:
            self.asked.set()
        raise RuntimeError("never seen before")
        yield


async def test_whatever_a_worker_fails_of_it_is_started_again(tmp_path: Path) -> None:
    database = Away()
    task = asyncio.create_task(Supervisor(database, tmp_path).run())
    try:
        await asyncio.wait_for(database.asked.wait(), 60)
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _broken() -> None:
    raise RuntimeError("never seen before")


async def test_the_service_ends_with_what_it_cannot_do_without(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    background = asyncio.create_task(_broken(), name="supervisor")
    with (
        listen("127.0.0.1", 0) as listener,
        pytest.raises(
            BackgroundEnded,
            match=r"the supervisor ended unexpectedly \(RuntimeError: never seen before",
        ),
    ):
        await asyncio.wait_for(
            serve._answer(settings, listener, "http://test", background=(background,)), 60
        )
