"""Compare-and-set over HTTP: the ETag of what was read comes back as If-Match."""

import re
from typing import Annotated

from fastapi import Depends, Header

from registry.kit.errors import Kind, ServiceError

_TAG = re.compile(r'"?(\d{1,9})"?')


class RevisionMissing(ServiceError):
    kind = Kind.precondition_required

    def __init__(self, how: str) -> None:
        super().__init__(f"If-Match: missing; send the ETag of what you read{how}")


class RevisionUnreadable(ServiceError):
    kind = Kind.malformed

    def __init__(self, text: str) -> None:
        super().__init__(f'If-Match: {text[:80]!r} is not one ETag of this service, such as "3"')


IfMatch = Annotated[str | None, Header(description="The ETag of what you read.")]
IfNoneMatch = Annotated[str | None, Header(description="`*` to make what is not there yet.")]


def etag(revision: int) -> str:
    return f'"{revision}"'


async def _expected(if_match: IfMatch = None) -> int:
    if if_match is None:
        raise RevisionMissing("")
    return _revision(if_match)


async def _expected_or_none(
    if_match: IfMatch = None, if_none_match: IfNoneMatch = None
) -> int | None:
    if if_match is not None and if_none_match is not None:
        raise RevisionUnreadable(f"{if_match} beside If-None-Match")
    if if_match is not None:
        return _revision(if_match)
    if (if_none_match or "").strip() != "*":
        raise RevisionMissing(", or `If-None-Match: *` to make it")
    return None


Expected = Annotated[int, Depends(_expected)]
"""The revision that a change was thought out on."""

ExpectedOrNone = Annotated[int | None, Depends(_expected_or_none)]


def _revision(text: str) -> int:
    found = _TAG.fullmatch(text.strip())
    if found is None or not found[1].isascii():
        raise RevisionUnreadable(text)
    return int(found[1])
