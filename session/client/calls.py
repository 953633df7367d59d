"""The calls of one ServiceClient that nobody may forget: no result yet, or failed unseen."""

import concurrent.futures
import logging
import math
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any, TypeVar

from session.client.errors import ClientClosed
from session.client.future import APIFuture

T = TypeVar("T")
log = logging.getLogger("modelyard")

_SAY_AFTER_S = 5.0
_SHOWN = 3  # of many that failed, most likely for the same reason


class Calls:
    def __init__(self) -> None:
        self._kept: dict[concurrent.futures.Future[Any], str] = {}

    def add(self, future: "concurrent.futures.Future[T]", what: str) -> APIFuture[T]:
        """Keep it until it succeeds, or until somebody has seen how it failed."""
        self._kept[future] = what
        future.add_done_callback(self._ended)
        return APIFuture(future, partial(self._kept.pop, future, None))

    def give_up(self) -> None:
        self._kept.clear()

    def wait(self, patience_s: float) -> None:
        """Until every call has ended, or none has for so long."""
        say_at = time.monotonic() + _SAY_AFTER_S
        ends = time.monotonic() + patience_s
        while open_calls := self.open():
            now = time.monotonic()
            if now >= ends:
                return
            if now >= say_at:
                log.warning("waiting for %s; Ctrl-C ends that", _counted(open_calls.values()))
                say_at = math.inf
            next_s = min(ends, say_at) - now
            first = concurrent.futures.FIRST_COMPLETED
            if concurrent.futures.wait(open_calls, next_s, first).done:
                ends = time.monotonic() + patience_s

    def report(self) -> None:
        """Only of an open client: what is closed while it runs has failed by that alone."""
        if given_up := self.open().values():
            log.warning("closed before its result: %s", _counted(given_up))
        failed = [
            (what, error)
            for future, what in self._kept.copy().items()
            if future.done() and (error := future.exception())
        ]
        self._kept.clear()
        for what, error in failed[:_SHOWN]:
            log.warning("%s failed, and its result was not looked at: %s", what, error)
        if len(failed) > _SHOWN:
            log.warning("%d more calls failed", len(failed) - _SHOWN)

    def open(self) -> dict["concurrent.futures.Future[Any]", str]:
        return {call: what for call, what in self._kept.copy().items() if not call.done()}

    def _ended(self, future: "concurrent.futures.Future[Any]") -> None:
        if future.exception() is None or isinstance(future.exception(), ClientClosed):
            self._kept.pop(future, None)


def _counted(calls: Iterable[str]) -> str:
    return ", ".join(what if n == 1 else f"{n} x {what}" for what, n in Counter(calls).items())
