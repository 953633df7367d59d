"""Several that do the same work, one after another, in another order each time."""

import time
from collections.abc import Callable, Mapping


def in_turns(movers: Mapping[str, Callable[[int], object]], turns: int) -> dict[str, list[float]]:
    """Seconds of each by name. Nobody always comes first; turn 0 warms up and is not counted."""
    times: dict[str, list[float]] = {name: [] for name in movers}
    names = list(movers)
    for turn in range(turns + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            begun = time.perf_counter()
            movers[name](turn)
            if turn:
                times[name].append(time.perf_counter() - begun)
    return times
