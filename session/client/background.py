"""One thread with one event loop, in which a ServiceClient does all its work."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from session.client.calls import Calls
from session.client.errors import ClientClosed
from session.client.future import APIFuture

T = TypeVar("T")


class Background:
    def __init__(self) -> None:
        self.calls = Calls()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="modelyard", daemon=True)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._open = True
        self._lock = threading.Lock()
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T], what: str) -> APIFuture[T]:
        """Run `work` in the background. `what` names the call where its outcome is missed."""
        return self.calls.add(self._started(work), what)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return APIFuture(self._started(work)).result()

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call within the loop; calls are made in the order in which this is called."""
        with self._lock:
            if not self._open:
                raise ClientClosed
            self._loop.call_soon_threadsafe(function, *args)

    def spawn(self, work: Coroutine[Any, Any, T], future: "concurrent.futures.Future[T]") -> None:
        """Only from within the loop: run `work` and hand its outcome to `future`."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._hand_over, future))

    def close(self, last: Callable[[], Awaitable[None]] | None = None) -> None:
        """Cancel what runs, await `last`, end the thread. Closing twice is nothing."""
        with self._lock:
            was_open, self._open = self._open, False
        if not was_open:
            return
        asyncio.run_coroutine_threadsafe(self._wind_up(last), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _started(self, work: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        try:
            self.call(self.spawn, work, future)
        except ClientClosed:
            work.close()
            raise
        return future

    async def _wind_up(self, last: Callable[[], Awaitable[None]] | None) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if last is not None:
            await last()
        await self._loop.shutdown_default_executor()

    def _hand_over(self, future: "concurrent.futures.Future[T]", task: "asyncio.Task[T]") -> None:
        self._tasks.discard(task)
        if task.cancelled():
            future.set_exception(ClientClosed())
        elif error := task.exception():
            future.set_exception(error)
        else:
            future.set_result(task.result())

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
