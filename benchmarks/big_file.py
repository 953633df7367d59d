"""A large file that the registry takes: one tensor of random bytes."""

import json
import os
from pathlib import Path

_HEADER = 256
_PIECE = 2**26


def write_big_file(path: Path, size: int) -> None:
    """Exactly `size` bytes."""
    left = size - 8 - _HEADER
    header = json.dumps({"x": {"dtype": "U8", "shape": [left], "data_offsets": [0, left]}})
    piece = os.urandom(_PIECE)
    with path.open("wb") as file:
        file.write(_HEADER.to_bytes(8, "little") + header.encode().ljust(_HEADER))
        while left:
            left -= file.write(piece[:left])
