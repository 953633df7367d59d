"""Servers that a benchmark starts."""

import subprocess
import time
from contextlib import suppress

import httpx


def await_answer(
    url: str, process: "subprocess.Popen[bytes]", name: str, *, within_s: float
) -> None:
    """Until `url` answers well; raises RuntimeError where it does not, or the process ends."""
    end = time.monotonic() + within_s
    while process.poll() is None and time.monotonic() < end:
        with suppress(httpx.HTTPError):
            if httpx.get(url, timeout=5, trust_env=False).is_success:
                return
        time.sleep(0.1)
    raise RuntimeError(f"{name} does not answer")
