"""Python's garbage collector in a process that answers for a long time."""

import gc


def spare_what_is_loaded() -> None:
    """Modules stay until the end, and are most of what the collector would walk over: tens of
    milliseconds in which nobody is answered. Requests leave many short-lived objects, so it need
    not look after every 700 of them either."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
