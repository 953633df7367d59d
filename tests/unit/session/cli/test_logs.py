"""A log that nobody can read any more is no reason to stop."""

import errno
import io
import os
import sys
from collections.abc import Iterator

import pytest
import structlog

from session.cli import logs


class Full(io.StringIO):
    """A file on a disk without room."""

    def write(self, _: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(params=["closed pipe", "full disk"])
def broken(request: pytest.FixtureRequest) -> Iterator[io.TextIOBase]:
    if request.param == "full disk":
        yield Full()
        return
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb", buffering=0) as raw:
        stream = io.TextIOWrapper(raw, "utf-8", write_through=True)
        yield stream
        stream.detach()


@pytest.fixture
def _restored() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("_restored")
async def test_a_line_that_cannot_be_written_is_lost(
    monkeypatch: pytest.MonkeyPatch, broken: io.TextIOBase
) -> None:
    monkeypatch.setattr(sys, "stderr", broken)
    with pytest.raises(OSError, match=r"Broken pipe|No space"):
        broken.write("x")
    logs.configure()
    log = structlog.get_logger()
    log.error("worker.died", why="a test")
    await log.aexception("request.failed", exc_info=ValueError("\ud800"))


@pytest.mark.usefixtures("_restored")
def test_a_line_is_written_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    logs.configure()
    structlog.get_logger().error("worker.died", why="a test")
    assert "worker.died" in stderr.getvalue()


def test_a_closed_file_is_written_to_in_vain() -> None:
    stream = io.StringIO()
    stream.close()
    unfailing = logs.Unfailing(stream)
    assert unfailing.write("lost") == 4
    unfailing.flush()
