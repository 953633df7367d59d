"""What the tests of the command line and of the client share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.commands import KEY, Ended, Scripted, runner, scripted
from support.fake_service import FakeService
from support.server import running


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
