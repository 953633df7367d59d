"""`Idempotency-Key` on every route that changes something, without a word in any of them.

The middleware keeps what was answered. The key is claimed where it is known who asks: in the
permission that every route has. `registry.kit.db` lets every commit in between confirm the claim.
"""

import asyncio
import hashlib
import re
from typing import Any

import structlog
from fastapi import Request, Response
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from registry.access.actor import Actor
from registry.idempotency import service
from registry.idempotency.errors import InvalidKey
from registry.idempotency.service import LARGEST_ANSWER, Answer, Claim
from registry.kit.clock import now
from registry.kit.db import Database, joining
from registry.kit.rest import Replayed
from registry.kit.trouble import DatabaseTrouble

HEADER = "Idempotency-Key"
REPLAYED = "Idempotent-Replayed"
NOT_KEPT = {"Cache-Control": "no-store"}
"""The headers of an answer with a secret: nobody between keeps it, and nor do we."""
PARAMETER: dict[str, Any] = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "description": (
        "The same key with the same request gets the first answer again, for a day; 409 if that "
        "had a secret in it."
    ),
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"},
}
_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
_SAMPLES = ("/openai/", "/v1/samples")
"""These may be drawn again after a failure: all that they commit is that they were asked."""
_OWN_TOKEN = re.compile(r"/v1/groups/[^/]+/uploads")
"""The token in its body makes it the same request; its answer has URLs that live for minutes."""
_RETRIED = frozenset((401, 403, 429))
_KEY = re.compile(r"[ -~]{1,255}")
_SMALL = 2**20
_SLOT = "modelyard.idempotency"
_CONDITIONS = ("if-match", "if-none-match")
log = structlog.get_logger()


class Attempt:
    """One request that came with a key."""

    def __init__(self, *, is_exact: bool) -> None:
        self.claim: Claim | None = None
        self._is_exact = is_exact

    async def confirm(self, db: Any) -> None:
        if self.claim is not None and self._is_exact:
            await service.confirm(db, self.claim)


async def claim(request: Request, actor: Actor) -> None:
    """Raises `Replayed` for a request that was answered before."""
    attempt: Attempt | None = request.scope.get(_SLOT)
    if attempt is None or attempt.claim is not None or actor.token is None:
        return
    key = request.headers[HEADER]
    if not _KEY.fullmatch(key):
        raise InvalidKey
    fingerprint = await _fingerprint(request)
    database: Database = request.app.state.database
    async with database.begin() as db:
        found = await service.claim(db, actor.token, key, fingerprint=fingerprint, at=now())
    if isinstance(found, Answer):
        raise Replayed(_replay(found))
    attempt.claim = found


class IdempotencyKeys:
    """Holds an answer until it is kept, so that whoever has seen one can have it again."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_change = scope["type"] == "http" and scope["method"] not in _SAFE
        is_same_anyway = _OWN_TOKEN.fullmatch(scope.get("path", ""))
        if not is_change or is_same_anyway or HEADER not in Headers(scope=scope):
            return await self._app(scope, receive, send)
        attempt = Attempt(is_exact=not scope["path"].startswith(_SAMPLES))
        scope[_SLOT] = attempt
        answer = _Held(scope, attempt, send)
        joined = joining.set(attempt.confirm)
        try:
            await self._app(scope, receive, answer.send)
        except Exception:
            await answer.give_back()
            raise
        finally:
            joining.reset(joined)


class _Held:
    """One answer on its way out."""

    def __init__(self, scope: Scope, attempt: Attempt, send: Send) -> None:
        self._scope, self._attempt, self._send = scope, attempt, send
        self._messages: list[Message] = []
        self._size = 0

    async def send(self, message: Message) -> None:
        if self._attempt.claim is None:
            return await self._send(message)
        self._messages.append(message)
        self._size += len(message.get("body", b""))
        if not _is_kept(self._messages[0]) or self._size > LARGEST_ANSWER:
            await self.give_back()
        elif message["type"] == "http.response.body" and not message.get("more_body"):
            await self._keep()
        else:
            return
        for each in self._messages:
            await self._send(each)

    async def give_back(self) -> None:
        await self._settle(None)

    async def _keep(self) -> None:
        start, *parts = self._messages
        headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in _of(start)]
        body = b"".join(part.get("body", b"") for part in parts)
        await self._settle(Answer(start["status"], headers, body))

    async def _settle(self, answer: Answer | None) -> None:
        """The answer goes out also where the database is away: then its loss is told later."""
        found, self._attempt.claim = self._attempt.claim, None
        if found is None:
            return
        database: Database = self._scope["app"].state.database
        try:
            async with database.begin() as db:
                if answer is None:
                    await service.give_back(db, found, at=now())
                else:
                    await service.keep(db, found, answer)
        except DatabaseTrouble as error:
            await log.awarning("answer.not_kept", path=self._scope["path"], reason=str(error))


def _of(start: Message) -> list[tuple[bytes, bytes]]:
    return list(start.get("headers", ()))


def _is_kept(start: Message) -> bool:
    """What may go otherwise the next time is asked anew, as where the answer itself says so; a
    stream is not held back, and a secret lies nowhere but where it is needed."""
    status: int = start["status"]
    is_stream = any(value.startswith(b"text/event-stream") for _, value in _of(start))
    is_early = any(name.lower() == b"retry-after" for name, _ in _of(start))
    is_secret = any(
        name.lower() == b"cache-control" and b"no-store" in value for name, value in _of(start)
    )
    is_lasting = status < 500 and status not in _RETRIED and not is_early
    return is_lasting and not is_stream and not is_secret


async def _fingerprint(request: Request) -> str:
    """Of the request as it was meant: where, what, and on which condition."""
    parts = [request.method, request.url.path, request.url.query]
    parts += [request.headers.get(name, "") for name in _CONDITIONS]
    digest = hashlib.sha256("\0".join(parts).encode() + b"\0")
    body = await request.body()
    if len(body) <= _SMALL:
        digest.update(body)
    else:
        await asyncio.to_thread(digest.update, body)
    return digest.hexdigest()


def _replay(answer: Answer) -> Response:
    response = Response(answer.body, answer.status)
    kept = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    response.raw_headers = [*kept, (REPLAYED.lower().encode(), b"true")]
    return response
