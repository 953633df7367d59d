"""The demo leaves nothing behind, not even where its service had to be killed."""

import os
import signal
from pathlib import Path

import pytest

from cookbook.demo import service as demo


def _processes_of(home: Path) -> list[int]:
    wanted = f"MODELYARD_HOME={home}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
@pytest.mark.parametrize("killed", [False, True])
def test_service_and_worker_are_gone_when_the_demo_goes_on(killed: bool) -> None:
    with demo.running() as service:
        home = service.home
        if killed:
            os.kill(int((home / "serve.lock").read_text()), signal.SIGKILL)
    assert _processes_of(home) == []
    assert not home.exists()
