"""Running out of memory: an error of one operation, which the session survives."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from session.engine.compute.batch import Row
from session.engine.port import EngineError

# Of all that an allocator says: how much is free, or in use, is what other accounts hold.
_ASKED = re.compile(r"tried to (allocate [\d.]+ \w+)", re.IGNORECASE)


@contextmanager
def sizes_in_memory_errors(rows: Sequence[Row]) -> Iterator[None]:
    """Say what did not fit. The original error is dropped: its traceback holds the tensors."""
    try:
        yield
        return
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        found = _ASKED.search(str(error))
        asked = f"tried to {found[1]}" if found else type(error).__name__
    lengths = [len(row.tokens) for row in rows]
    longest = max(rows, key=lambda row: len(row.tokens))
    raise EngineError(
        f"out of memory in a pass of {sum(lengths)} tokens, the longest of them datum "
        f"{longest.index} with {len(longest.tokens)} ({asked})"
    )


def is_out_of_memory(error: BaseException) -> bool:
    """torch has a class for it on accelerators; its CPU allocator only has words."""
    words = str(error)
    return (
        type(error).__name__ in ("MemoryError", "OutOfMemoryError")
        or "can't allocate memory" in words
        or "bad_alloc" in words
    )
