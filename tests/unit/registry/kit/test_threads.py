import threading

import pytest

from registry.kit.threads import in_own_thread


async def test_the_thread_is_gone_with_its_work() -> None:
    threads = [await in_own_thread(threading.current_thread) for _ in range(3)]
    for each in threads:
        each.join(60)
    assert len(set(threads)) == 3
    assert not any(each.is_alive() for each in threads)


async def test_what_it_raises_is_raised_here() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        await in_own_thread(int, "x")


async def test_it_takes_what_the_work_takes() -> None:
    assert await in_own_thread(int, "12", base=3) == 5
