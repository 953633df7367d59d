"""Servers whose process decides what a signal means."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn


class Server(uvicorn.Server):
    """Leaves signals alone: its process stops other things before, or after, it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def stop_requested() -> Iterator[asyncio.Event]:
    """Set by the first SIGINT or SIGTERM. A second one is not held up by a clean stop."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    names = (signal.SIGTERM, signal.SIGINT)

    def asked() -> None:
        stop.set()
        for name in names:
            loop.remove_signal_handler(name)

    for name in names:
        loop.add_signal_handler(name, asked)
    try:
        yield stop
    finally:
        for name in names:
            loop.remove_signal_handler(name)
