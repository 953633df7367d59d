"""The one validator for names of files and keys of objects."""

import re
import unicodedata

from registry.artifacts.errors import InvalidArtifactName

LONGEST_NAME = 1024
LONGEST_PART = 255
_DRIVE = re.compile(r"[A-Za-z]:")
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")


def validate_artifact_name(name: str) -> str:
    """The name itself, once it is sure that it stays below whatever it is put under.

    A wire decodes a name once; what still holds an escape was meant to be decoded again.
    """
    if reason := _why_not(name):
        raise InvalidArtifactName(name[:80], reason)
    return name


def _why_not(name: str) -> str | None:
    if not name:
        return "is empty"
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name):
        return "holds a control character"
    if len(name.encode()) > LONGEST_NAME:
        return f"is longer than {LONGEST_NAME} bytes"
    if not unicodedata.is_normalized("NFC", name):
        return "is not in Unicode's NFC form"
    if "\\" in name:
        return "holds a backslash"
    if _ESCAPE.search(name):
        return "holds a percent escape"
    if name.startswith("/") or _DRIVE.match(name):
        return "is absolute"
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "has a part that is empty, '.' or '..'"
    if any(len(part.encode()) > LONGEST_PART for part in parts):
        return f"has a part longer than {LONGEST_PART} bytes"
    return None
