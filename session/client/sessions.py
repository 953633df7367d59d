"""Opening a session, and waiting until it stands or has ended."""

import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from session.client.connection import Connection
from session.client.errors import SessionNotRunning
from session.client.records import SessionInfo

log = logging.getLogger("modelyard")


def session_path(name: str) -> str:
    return f"/v1/sessions/{quote(name, safe='')}"


async def opened(connection: Connection, request: Mapping[str, Any]) -> SessionInfo:
    info = await connection.post("/v1/sessions", request, SessionInfo)
    return _running(await settled(connection, info))


async def attached(connection: Connection, name: str) -> SessionInfo:
    info = await connection.get(session_path(name), SessionInfo)
    return _running(await settled(connection, info))


async def settled(connection: Connection, info: SessionInfo) -> SessionInfo:
    """Wait while the session is being created or stopped."""
    while info.status in ("created", "stopping"):
        found = await connection.outcome_json(f"/v1/sessions/{info.id}", SessionInfo)
        if found.status == info.status:
            log.warning("session %s is still %s", info.name or info.id, found.status)
        info = found
    return info


def _running(info: SessionInfo) -> SessionInfo:
    if info.status not in ("running", "blocked"):
        raise SessionNotRunning(info.name or info.id, info.status, info.error)
    return info
