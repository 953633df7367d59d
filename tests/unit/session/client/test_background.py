import asyncio
import signal
import threading
from collections.abc import Iterator

import pytest

from session.client.background import Background
from session.client.errors import ClientClosed


@pytest.fixture
def background() -> Iterator[Background]:
    background = Background()
    yield background
    background.close()


async def _fails() -> None:
    raise KeyError("mine")


async def _gives(value: int) -> int:
    return value


def test_the_error_of_the_work_is_raised_to_every_waiter(background: Background) -> None:
    future = background.start(_fails(), "it")
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            future.result(5)
    assert isinstance(future.exception(), KeyError)


def test_ctrl_c_while_waiting_leaves_the_work_and_the_client(background: Background) -> None:
    gate = asyncio.Event()
    future = background.start(gate.wait(), "it")
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))

    def wait() -> None:
        timer.start()
        future.result(60)

    with pytest.raises(KeyboardInterrupt):
        wait()
    timer.join()
    background.call(gate.set)
    assert future.result(5) is True
    assert background.run(_gives(3)) == 3


def test_closing_ends_what_runs_and_refuses_what_comes(background: Background) -> None:
    future = background.start(asyncio.sleep(60), "it")
    other = background.start(_gives(1), "it")
    background.close()
    background.close()
    with pytest.raises(ClientClosed):
        future.result(5)
    assert other.done()
    with pytest.raises(ClientClosed):
        background.start(_gives(1), "it")
