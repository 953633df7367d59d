"""Bytes over REST: compared with their digest, which is also their ETag."""

import re
from pathlib import PurePosixPath
from typing import Any

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from registry.artifacts.manifest import FileEntry
from registry.artifacts.store import BlobStore
from registry.artifacts.transfer import range_stream, verified_stream
from registry.kit.errors import Kind
from registry.kit.rest import problem

BYTES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The bytes, as a file to save; the ETag is their SHA-256.",
        "content": {
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            "application/json": {"schema": {}},
            "text/plain": {"schema": {"type": "string"}},
        },
    },
    304: {"description": "If-None-Match names these bytes already."},
}
"""What a route that answers a file says of its answers."""
RANGES: dict[int | str, dict[str, Any]] = {
    **BYTES,
    206: {
        "description": "The one range of bytes that was asked for. It is not compared.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    },
    307: {"description": "With `redirect=true`: Location is a signed URL of the object store."},
    416: {
        "description": "The file has no byte of that range.",
        "content": {
            "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
        },
    },
}
"""The same where it serves a range, or sends to the store."""

_RANGE = re.compile("bytes=([0-9]{0,100})-([0-9]{0,100})")
"""Any number of bytes, and no number that takes long to read."""
_TYPES = {".json": "application/json", ".txt": "text/plain", ".jinja": "text/plain"}


def not_modified(request: Request, sha256: str) -> Response | None:
    """An answer to a client that has these bytes already."""
    known = [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]
    if known != ["*"] and _etag(sha256) not in (tag.removeprefix("W/") for tag in known):
        return None
    return Response(status_code=304, headers={"ETag": _etag(sha256)})


def content_headers(path: str, sha256: str) -> dict[str, str]:
    """A browser saves the file and never runs what somebody has stored."""
    return {
        "ETag": _etag(sha256),
        "Content-Type": _TYPES.get(PurePosixPath(path).suffix, "application/octet-stream"),
        "Content-Disposition": "attachment",
        "X-Content-Type-Options": "nosniff",
    }


async def download(
    request: Request, store: BlobStore, prefix: str, entry: FileEntry, *, redirect: bool
) -> Response:
    if redirect and (signed := await store.signed_url(prefix + entry.path)) is not None:
        return Response(
            status_code=307, headers={"Location": signed.url, "Cache-Control": "no-store"}
        )
    headers = {**content_headers(entry.path, entry.sha256), "Accept-Ranges": "bytes"}
    span = _span(request, entry)
    if span is None:
        body = await verified_stream(store, prefix, entry)
        return StreamingResponse(body, headers={**headers, "Content-Length": str(entry.size)})
    start, end = span
    if start >= end:
        return _outside(entry)
    place = {
        "Content-Length": str(end - start),
        "Content-Range": f"bytes {start}-{end - 1}/{entry.size}",
    }
    part = await range_stream(store, prefix, entry, start, end)
    return StreamingResponse(part, 206, headers={**headers, **place})


def _span(request: Request, entry: FileEntry) -> tuple[int, int] | None:
    """The one range that is asked for. Several, or what is none, count as the whole file, and so
    does the rest of a file that If-Range knows as another."""
    found = _RANGE.fullmatch(request.headers.get("range", ""))
    if found is None or request.headers.get("if-range", _etag(entry.sha256)) != _etag(entry.sha256):
        return None
    first, last = found.groups()
    if first:
        end = min(int(last) + 1, entry.size) if last else entry.size
        return None if last and int(last) < int(first) else (int(first), end)
    return (max(entry.size - int(last), 0), entry.size) if last else None


def _outside(entry: FileEntry) -> Response:
    reason = f"Range: {entry.path} has {entry.size} bytes, and none of those"
    headers = {"Content-Range": f"bytes */{entry.size}"}
    return problem(416, "RangeNotSatisfiable", reason, kind=Kind.malformed, headers=headers)


def _etag(sha256: str) -> str:
    return f'"{sha256}"'
