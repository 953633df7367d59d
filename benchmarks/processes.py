"""Processes of their own for those that are compared, and what Linux says of their memory."""

import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path


def own_process() -> ProcessPoolExecutor:
    """Where a peer computes. OpenMP has threads for each thread that computes, and once they are
    more than the processors, all in the process are slower."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def peak_bytes(pid: int | str = "self") -> int:
    """The most that has been resident at once. Not getrusage's, which begins with that of the
    process that started this one."""
    return _read(pid, "VmHWM")


def resident_bytes() -> int:
    """Of this process, now."""
    return _read("self", "VmRSS")


def _read(pid: int | str, field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found.group(1)) * 1024 if found else 0
