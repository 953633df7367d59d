import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from exporters.serving.local import LocalTarget
from support.serving import COMMAND
from support.waiting import until

TARGET = LocalTarget(COMMAND)
PARENT = """
import asyncio, sys
from pathlib import Path
from exporters.serving.local import LocalTarget

async def main(directory):
    target = LocalTarget(sys.argv[2:])
    running = await target.start(directory, served_name="m", log=directory / "log")
    while running.address is None:
        await asyncio.sleep(0.02)
    print(running.address, flush=True)
    await asyncio.sleep(60)

asyncio.run(main(Path(sys.argv[1])))
"""


def refuses(address: str) -> Callable[[], bool]:
    def asked() -> bool:
        try:
            httpx.get(f"{address}/health", timeout=2)
        except httpx.TransportError:
            return True
        return False

    return asked


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


async def test_a_child_answers_under_its_own_address_until_stopped(model: Path) -> None:
    running = await TARGET.start(model, served_name="facts@1", log=model / "log")
    await until(lambda: running.address is not None)
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"{running.address}/health")).json()["model"] == "facts@1"
    assert running.alive()
    await running.stop()
    assert not running.alive()
    assert running.address is None
    await running.stop()


async def test_what_a_failing_child_said_is_in_the_log(tmp_path: Path) -> None:
    running = await TARGET.start(tmp_path, served_name="x", log=tmp_path / "log")
    await until(lambda: not running.alive())
    await running.stop()
    assert "no config.json here" in (tmp_path / "log").read_text()


async def test_killing_the_parent_leaves_no_child(model: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT, str(model), *COMMAND), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    address = (await parent.stdout.readline()).decode().strip()
    assert not refuses(address)()
    os.kill(parent.pid, signal.SIGKILL)
    await parent.wait()
    await until(refuses(address))
