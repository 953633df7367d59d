"""How the service's processes write their log: one line an event, and no local variables."""

import sys
from contextlib import suppress
from typing import TextIO

import structlog


class Unfailing:
    """A stream for a log: what it cannot write is lost, and whoever logs it goes on.

    A terminal is closed, the reader of a pipe ends, a disk fills: no reason to stop the service."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


def configure() -> None:
    """Tracebacks without locals: those could hold a token or somebody's data."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        logger_factory=structlog.PrintLoggerFactory(
            Unfailing(sys.stderr)  # type: ignore[arg-type]  # all that is used of a file
        ),
    )
