"""Identifiers: a prefix that names the kind, then 26 characters that sort by time."""

import os
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32


def new_id(prefix: str) -> str:
    """48 bits of milliseconds and 80 random bits: unguessable, unique, sortable by age."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10))
    letters = (_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))
    return f"{prefix}_{''.join(letters)}"
