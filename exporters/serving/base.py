"""What a serving target is: it starts a process on a model directory and knows how to end it."""

from pathlib import Path
from typing import Protocol


class Running(Protocol):
    """One started process. It listens once `address` is known, and may still be loading then.

    `GET {address}/health` answers 200 and `{"status": "ok", "model": served_name}` once it can
    answer requests.
    """

    @property
    def address(self) -> str | None: ...

    def alive(self) -> bool: ...

    async def stop(self) -> None:
        """Let requests finish for a moment, then end it. Stopping twice is fine."""
        ...


class Target(Protocol):
    async def start(self, model_dir: Path, *, served_name: str, log: Path) -> Running:
        """Returns at once; what the process prints goes to `log`."""
        ...
