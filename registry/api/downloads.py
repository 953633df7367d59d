"""Bytes over REST: compared with their digest, which is also their ETag."""

from pathlib import PurePosixPath
from typing import Any

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from registry.artifacts.manifest import FileEntry
from registry.artifacts.store import BlobStore
from registry.artifacts.transfer import verified_stream

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

_TYPES = {".json": "application/json", ".txt": "text/plain", ".jinja": "text/plain"}


def not_modified(request: Request, sha256: str) -> Response | None:
    """An answer to a client that has these bytes already."""
    known = request.headers.get("if-none-match", "")
    if _etag(sha256) not in (tag.strip() for tag in known.split(",")):
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


async def download(store: BlobStore, prefix: str, entry: FileEntry) -> Response:
    headers = content_headers(entry.path, entry.sha256)
    body = await verified_stream(store, prefix, entry)
    return StreamingResponse(body, headers={**headers, "Content-Length": str(entry.size)})


def _etag(sha256: str) -> str:
    return f'"{sha256}"'
