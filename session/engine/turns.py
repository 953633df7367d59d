"""Who computes next: one thread, one turn of work at a time. No torch in this file.

Turns of training calls wait in the order of their coming, one of each call at most. Sampling
is one more caller whose turn is a pass for all that samples. While both wait, sampling gets as much
time as training had: so a pass waits for one turn of training at most, and a turn of training for
one turn of every other call, each followed by passes that take as long as it did, or by one.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class Turns:
    """`make_pass` does one pass and says whether there is more to do. It must not raise."""

    def __init__(self, make_pass: Callable[[], bool], *, start: Callable[[], None]) -> None:
        self._make_pass = make_pass
        self._start = start
        self._wake = threading.Condition()
        self._notes: deque[Callable[[], None]] = deque()
        self._turns: deque[Callable[[], None]] = deque()
        self._has_passes = False
        self._owed = 0.0  # seconds of passes, before the next turn of training
        self._is_closed = False
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    def take(self, job: Callable[[], T]) -> Future[T]:
        """A turn of its own. Waits for those that came before."""
        return self._add(job, self._turns)

    def note(self, job: Callable[[], T]) -> Future[T]:
        """For what takes no time: it is done when the turn that runs is over."""
        return self._add(job, self._notes)

    def close(self) -> None:
        """Waits for the turn that runs, and does what is left: it finds out that all is closed."""
        with self._wake:
            self._is_closed = True
            self._wake.notify()
        self._thread.join()

    def _add(self, job: Callable[[], T], queue: deque[Callable[[], None]]) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001  (whoever awaits it handles it)
                future.set_exception(error)

        with self._wake:
            queue.append(run)
            self._wake.notify()
        return future

    def _loop(self) -> None:
        self._start()
        while (work := self._next()) is not None:
            work()

    def _next(self) -> Callable[[], None] | None:
        with self._wake:
            while not (self._notes or self._turns or self._has_passes or self._is_closed):
                self._wake.wait()
            if self._notes:
                self._has_passes = True  # it may be a request; a pass without one costs nothing
                return self._notes.popleft()
            if self._has_passes and not self._is_closed and (self._owed > 0 or not self._turns):
                return self._pass
            return self._turn if self._turns else None

    def _pass(self) -> None:
        begun = time.perf_counter()
        has_more = self._make_pass()
        self._owed = max(0.0, self._owed - (time.perf_counter() - begun)) if has_more else 0.0
        self._has_passes = has_more

    def _turn(self) -> None:
        begun = time.perf_counter()
        self._turns.popleft()()
        self._owed = time.perf_counter() - begun  # also to a request that came meanwhile
