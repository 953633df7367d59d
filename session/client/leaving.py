"""The end of the script, for the clients that are still open then: as of a `with` block."""

import atexit
import concurrent.futures.thread  # noqa: F401 - before us: what is registered last runs first
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any, Protocol


class Closable(Protocol):
    def close(self, *, wait: bool) -> None: ...


_open: dict[Closable, int] = {}  # with the process that opened it: a fork has no background thread


def close_at_exit(client: Closable) -> None:
    _watch()
    _open[client] = os.getpid()


def forget(client: Closable) -> None:
    _open.pop(client, None)


@cache
def _watch() -> None:
    # `atexit` would be too late: by then no executor takes work, so neither a custom loss nor the
    # look-up of a host's name could still run.
    register: Callable[[Callable[[], None]], Any] = getattr(
        threading, "_register_atexit", atexit.register
    )
    register(partial(_close_all, _uncaught()))


def _close_all(error_before: object) -> None:
    wait = hasattr(sys, "ps1") or _uncaught() is error_before
    interrupted = False
    for client, process in list(_open.items()):
        if process != os.getpid():
            continue
        try:
            client.close(wait=wait and not interrupted)
        except KeyboardInterrupt:
            interrupted = True
    if interrupted:
        _die_of_it()


def _die_of_it() -> None:
    """As Python does of a Ctrl-C that nobody caught, but here nothing would raise it any more: a
    shell's loop around the script is to end too."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


def _uncaught() -> object:
    """The exception that ended the script; at a prompt, the last one that was shown."""
    return getattr(sys, "last_value", None)
