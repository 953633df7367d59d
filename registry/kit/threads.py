"""Work in a thread that ends with it."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_own_thread(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """For what computes with torch beside the engine's thread, where `asyncio.to_thread` would do
    for anything else.

    A thread that computed keeps its OpenMP threads for as long as it lives. While there are more of
    them than processors, OpenMP lets all of them sleep between two operations instead of waiting
    awake, and the engine takes a third longer for every pass.
    """
    future: Future[T] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work(*arguments, **named))
        except BaseException as error:  # noqa: BLE001  (whoever awaits it handles it)
            future.set_exception(error)

    threading.Thread(target=run, name=getattr(work, "__name__", None)).start()
    return await asyncio.wrap_future(future)
