"""The result of a call that runs in the background."""

import asyncio
import concurrent.futures
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class APIFuture(Generic[T]):
    """Wait for it from any thread with `result()`, or `await` it in any event loop.

    Giving up waiting (a timeout, Ctrl-C, a cancelled task) does not stop the call: the same
    future can be waited for again.
    """

    def __init__(
        self, future: "concurrent.futures.Future[T]", seen: Callable[[], object] = object
    ) -> None:
        self._future = future
        self._seen = seen

    def result(self, timeout: float | None = None) -> T:
        """The value, or the call's error. Raises TimeoutError after `timeout` seconds."""
        self._wait(timeout)
        return self._future.result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._wait(timeout)
        return self._future.exception()

    def done(self) -> bool:
        return self._future.done()

    def __await__(self) -> Generator[Any, None, T]:
        # Shielded: a cancelled awaiter must not cancel what others may still wait for.
        try:
            return (yield from asyncio.shield(asyncio.wrap_future(self._future)).__await__())
        finally:
            if self._future.done():
                self._seen()

    def _wait(self, timeout: float | None) -> None:
        if not concurrent.futures.wait([self._future], timeout).done:
            raise TimeoutError(f"no result after {timeout} s; the call goes on, wait for it again")
        self._seen()
