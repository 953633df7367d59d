"""What the tests of the command line, of the client and of the service in this process share."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pytest

from support.commands import KEY, Ended, Scripted, runner, scripted
from support.fake_service import FakeService
from support.hosted import Hosted, hosted
from support.server import running
from support.tiny import tiny_model


@pytest.fixture
def modelyard(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Ended]:
    """Run one command in an installation of its own."""
    monkeypatch.setenv("MODELYARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MODELYARD_API_KEY", KEY)
    return runner(monkeypatch, capsys)


@pytest.fixture
def scripted_service() -> Iterator[Scripted]:
    with scripted() as service:
        yield service


@pytest.fixture
def fake() -> FakeService:
    return FakeService()


@pytest.fixture
def url(fake: FakeService) -> Iterator[str]:
    with running(fake.app()) as url:
        yield url


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Hosted]:
    async with hosted(tmp_path / "home", model=tiny_model(tmp_path / "tiny")) as service:
        yield service


@pytest.fixture
async def client(service: Hosted) -> AsyncIterator[httpx.AsyncClient]:
    """It has the running session `s1`."""
    async with service.client() as client:
        await client.post("/v1/sessions", json={"base_model": "tiny", "name": "s1", "group": "g1"})
        await client.get("/v1/sessions/s1?wait=20")
        yield client
