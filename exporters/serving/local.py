"""A child process of this one, on this machine: `modelyard serve-model DIR`.

The child picks its own port and writes the address to a file once it listens. It ends when its
standard input closes, so that not even kill -9 of the parent leaves it behind.
"""

import asyncio
import contextlib
import secrets
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from pathlib import Path

from exporters.serving.base import Running

SERVE_MODEL = (sys.executable, "-m", "session", "serve-model")
_PATIENCE_S = 10.0


class LocalTarget:
    def __init__(self, command: Sequence[str] = SERVE_MODEL) -> None:
        self._command = tuple(command)

    async def start(self, model_dir: Path, *, served_name: str, log: Path) -> Running:
        address_file = log.with_name(f"{log.stem}-{secrets.token_hex(4)}.address")
        arguments = [str(model_dir), "--served-name", served_name]
        arguments += ["--address-file", str(address_file)]
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                *arguments,
                stdin=PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the parent, which then closes the pipe
            )
        return _Child(process, address_file)


class _Child:
    def __init__(self, process: Process, address_file: Path) -> None:
        self._process = process
        self._address_file = address_file

    @property
    def address(self) -> str | None:
        return self._address_file.read_text() if self._address_file.exists() else None

    def alive(self) -> bool:
        return self._process.returncode is None

    async def stop(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        self._address_file.unlink(missing_ok=True)
