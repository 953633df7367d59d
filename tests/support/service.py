"""The real service in processes of its own: `modelyard serve` on a home that a test owns."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

START_S = 180.0


class Service:
    """One `modelyard serve` with its worker; answers once made."""

    def __init__(self, home: Path, process: subprocess.Popen[bytes], log: Path) -> None:
        self.home = home
        self.process = process
        self.log = log
        self.url = self.api_key = ""
        self._until(self._answers, "the service does not answer")

    def worker_pid(self) -> int:
        """The supervised worker's process id, once there is one."""
        found: list[int] = []

        def look() -> bool:
            found[:] = [pid for pid in _children(self.process.pid) if "worker" in _command(pid)]
            return bool(found)

        self._until(look, "there is no worker")
        return found[0]

    def kill_worker(self) -> None:
        os.kill(self.worker_pid(), signal.SIGKILL)

    def stop(self, name: signal.Signals = signal.SIGINT) -> int:
        """Ask for a clean end and wait for it; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(name)
        return self.process.wait(60)

    def _answers(self) -> bool:
        """To its own key: at the address of an earlier run, another service may answer by now."""
        try:
            found = json.loads((self.home / "credentials").read_text())
            self.url, self.api_key = found["url"], found["api_key"]
            headers = {"Authorization": f"Bearer {self.api_key}"}
            return httpx.get(f"{self.url}/v1/models", headers=headers, timeout=2).status_code == 200
        except (OSError, httpx.HTTPError):
            return False

    def _until(self, holds: Callable[[], bool], complaint: str) -> None:
        end = time.monotonic() + START_S
        while not holds():
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"{complaint}; its log ends:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.05)


@contextmanager
def serving(home: Path, *, settings: Mapping[str, str] | None = None) -> Iterator[Service]:
    """Start it on a free port, and end it, whatever the test did to it."""
    log = home.parent / f"{home.name}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*MODELYARD, "serve", "--port", "0"],
            env=environment(home, settings),
            stdout=output,
            stderr=output,
        )
    try:
        service = Service(home, process, log)
        yield service
        service.stop()
    finally:
        process.kill()
        process.wait()


MODELYARD = (sys.executable, "-m", "session")


def environment(home: Path, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's, without what a developer's shell may say of another service."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MODELYARD_")}
    return {**kept, "MODELYARD_HOME": str(home), "OMP_NUM_THREADS": "1", **(settings or {})}


def modelyard(
    home: Path, *arguments: str, settings: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line as an operator on this home."""
    return subprocess.run(
        [*MODELYARD, *arguments],
        env=environment(home, settings),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _command(pid: int) -> list[str]:
    """Nothing of a process that has ended since it was found."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []
