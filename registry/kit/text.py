"""Text that no encoding can carry: JSON may say half a surrogate pair, and Python takes it."""

import msgspec

NOT_UNICODE = "its text has half a surrogate pair, which is not Unicode"


def broken_text(document: object) -> str | None:
    """Where in what was read from JSON the first such text stands, as `metadata.key`."""
    if _is_encodable(document):
        return None
    waiting: list[tuple[str, object]] = [("", document)]
    while waiting:
        where, value = waiting.pop()
        match value:
            case str() if not is_unicode(value):
                return where
            case dict():
                if any(isinstance(key, str) and not is_unicode(key) for key in value):
                    return where
                parts = [(f"{where}.{key}" if where else str(key), v) for key, v in value.items()]
                waiting += reversed(parts)
            case list():
                parts = [(f"{where}.{i}" if where else str(i), v) for i, v in enumerate(value)]
                waiting += reversed(parts)
    return None


def _is_encodable(document: object) -> bool:
    """A first look, many times faster than the search. What it does not know is searched."""
    try:
        msgspec.json.encode(document)
    except (UnicodeEncodeError, RecursionError, TypeError, ValueError, OverflowError):
        return False
    return True


def is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    """The same, with what no encoding can carry, and no database, written out."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", r"\x00")
