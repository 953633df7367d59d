"""Where an object lies, told by its key alone."""

import re
from collections.abc import Collection
from dataclasses import dataclass

PACKAGES = "versions"
_ID = re.compile(r"(?P<kind>[a-z]+)_[0-9a-hjkmnp-tv-z]{26}")
_PACKAGE = "pkg"


@dataclass(frozen=True, slots=True)
class Place:
    """A folder that is needed or not as a whole. `kind` is PACKAGES, or one of `Claims.folders`."""

    kind: str
    account_id: str
    prefix: str
    id: str


def place_of(key: str, folders: Collection[str]) -> Place | None:
    """None for a key that is none of ours."""
    parts = key.split("/", 3)
    if len(parts) < 4:
        return None
    account_id, folder, owner, _ = parts
    form = _ID.fullmatch(owner)
    if form is None:
        return None
    prefix = f"{account_id}/{folder}/{owner}/"
    if form["kind"] == _PACKAGE:
        return Place(PACKAGES, account_id, prefix, owner)
    return Place(folder, account_id, prefix, owner) if folder in folders else None
