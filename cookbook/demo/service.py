"""A service of the demo's own: fresh home, free port, and nothing left behind at the end."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from cookbook.demo import show

START_S = 60
STOP_S = 20


class DemoFailed(Exception):
    """What the demo promises did not happen. The message is for the person watching."""


@dataclass(frozen=True)
class Service:
    home: Path
    url: str
    api_key: str

    def command(self, *arguments: str) -> None:
        """Run `modelyard ARGUMENTS` on this home."""
        done = subprocess.run(
            [sys.executable, "-m", "session", *arguments],
            cwd=self.home,
            env=environment(self.home),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise DemoFailed(f"modelyard {' '.join(arguments)}: {done.stderr or done.stdout}")


@contextmanager
def running() -> Iterator[Service]:
    with tempfile.TemporaryDirectory(prefix="modelyard-demo-") as folder:
        home = Path(folder)
        log = home / "service.log"
        with log.open("w") as output:
            fcntl.flock(output, fcntl.LOCK_EX)  # held by every process that writes to this log
            # A session of its own: Ctrl-C reaches the demo, which then stops the service.
            process = subprocess.Popen(
                [sys.executable, "-m", "session", "serve", "--port", "0"],
                cwd=home,
                env=environment(home),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield _wait_until_healthy(process, home, log)
        finally:
            _stop(process)
            _wait_until_released(log)


def environment(home: Path) -> dict[str, str]:
    """Without the user's own MODELYARD_ settings. Converted models are kept between runs."""
    theirs = {key: value for key, value in os.environ.items() if not key.startswith("MODELYARD_")}
    models = os.environ.get("MODELYARD_MODELS") or str(Path.home() / ".cache/modelyard/models")
    return theirs | {"MODELYARD_HOME": str(home), "MODELYARD_MODELS": models}


def _wait_until_healthy(process: subprocess.Popen[bytes], home: Path, log: Path) -> Service:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        credentials = home / "credentials"
        if credentials.exists() and _answers(found := json.loads(credentials.read_text())):
            return Service(home, found["url"], found["api_key"])
        time.sleep(0.1)
    raise DemoFailed("the service did not start. It said:\n" + log.read_text()[-2000:])


def _answers(credentials: dict[str, str]) -> bool:
    try:
        return httpx.get(credentials["url"] + "/healthz", trust_env=False).is_success
    except httpx.TransportError:
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Cleanly, unless that takes too long or Ctrl-C or SIGTERM comes once more."""
    process.send_signal(signal.SIGINT)
    try:
        with show.waiting("stopping the service"):
            process.wait(STOP_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt, SystemExit):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_released(log: Path) -> None:
    """Until the worker is gone too: it ends by itself once the service is no more."""
    deadline = time.monotonic() + STOP_S
    with log.open() as file:
        while time.monotonic() < deadline:
            try:
                return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.05)
