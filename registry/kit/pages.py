"""Keyset pages: a cursor says after which row to go on, so that inserts and deletes move nothing.

A cursor is opaque, and bound to the list and the filters it was made for.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from registry.kit.errors import Kind, ServiceError

Position = tuple[str | int, ...]
T = TypeVar("T")

LARGEST_INTEGER = 2**63 - 1


class BadCursor(ServiceError):
    kind = Kind.malformed

    def __init__(self) -> None:
        super().__init__(
            "cursor: not one that this list answered with these filters; leave it out to begin"
        )


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: Sequence[T]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Cursors:
    """Writes and reads the cursors of one list. `form` is the type of each part of a position."""

    form: tuple[type[str] | type[int], ...]
    scope: tuple[str | int | None, ...]

    def write(self, position: Position) -> str:
        text = json.dumps([self._fingerprint(), *position], separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    def read(self, cursor: str | None) -> Position | None:
        """The position to go on after; None means from the start."""
        if cursor is None:
            return None
        try:
            padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
            parts = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        except (ValueError, binascii.Error, RecursionError):
            raise BadCursor from None
        if not isinstance(parts, list) or parts[:1] != [self._fingerprint()]:
            raise BadCursor
        position = tuple(parts[1:])
        if len(position) != len(self.form) or not all(map(_fits, position, self.form)):
            raise BadCursor
        return position

    def page(self, rows: Sequence[T], limit: int, position: Callable[[T], Position]) -> Page[T]:
        """Cut `rows`, of which one more than `limit` was asked for, to a page."""
        if len(rows) <= limit:
            return Page(rows, None)
        return Page(rows[:limit], self.write(position(rows[limit - 1])))

    def _fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.scope).encode()).hexdigest()[:12]


def _fits(value: object, form: type[str] | type[int]) -> bool:
    """Only what a database takes: no NUL, no surrogate, no number beyond 64 bits."""
    if type(value) is not form:
        return False
    if isinstance(value, str):
        return "\0" not in value and value.isprintable()
    return isinstance(value, int) and abs(value) <= LARGEST_INTEGER
