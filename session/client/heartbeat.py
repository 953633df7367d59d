"""Says that a session is still wanted while its client thinks, so that it is not idle."""

import asyncio
import concurrent.futures
import logging
import weakref

from session.client.connection import Connection
from session.client.errors import APIError, ConnectionFailed
from session.client.records import SessionInfo

log = logging.getLogger("modelyard")
_EVERY_S = 20.0  # no service has less patience than a minute
_ENDED = 409
_OVER = (404, 405, _ENDED)  # deleted, or a service that knows no heartbeats


class Heartbeat:
    """For as long as there is an owner, until it is stopped or its connection is closed."""

    def __init__(self, owner: object, connection: Connection, session_path: str) -> None:
        self._owner = weakref.ref(owner)
        self._connection = connection
        self._path = f"{session_path}/heartbeat"
        self._is_wanted = True
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        connection.background.call(connection.background.spawn, self._beat(), self._ended)

    def stop(self) -> None:
        self._is_wanted = False

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            if not self._is_wanted or self._owner() is None:
                return
            try:
                await self._connection.post_again(self._path, {}, SessionInfo)
            except APIError as error:
                if error.status == _ENDED and self._is_wanted:
                    log.warning("%s", error.detail)
                if error.status in _OVER:
                    return
            except ConnectionFailed:
                continue  # told to whoever asks for something
