"""FastAPI pieces shared by every router: transactions, and problem+json for every error."""

import json
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import suppress
from typing import Annotated, Any

import structlog
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel, ConfigDict, model_validator
from sqlalchemy.ext.asyncio import AsyncSession
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from registry.kit.db import Database
from registry.kit.errors import Kind, ServiceError, StorageFull, is_full
from registry.kit.text import NOT_UNICODE, broken_text, printable
from registry.kit.trouble import DatabaseTrouble

STATUS: Mapping[Kind, int] = {
    Kind.malformed: 400,
    Kind.invalid: 422,
    Kind.unauthenticated: 401,
    Kind.forbidden: 403,
    Kind.not_found: 404,
    Kind.conflict: 409,
    Kind.precondition_failed: 412,
    Kind.precondition_required: 428,
    Kind.limit_exceeded: 429,
    Kind.unavailable: 503,
    Kind.internal: 500,
}
_CLIENT_CLOSED_REQUEST = 499  # as proxies log it; no standard has a status for it
log = structlog.get_logger()


async def _transaction(request: Request) -> AsyncIterator[AsyncSession]:
    database: Database = request.app.state.database
    async with database.begin() as db:
        yield db


async def _reading(request: Request) -> AsyncIterator[AsyncSession]:
    database: Database = request.app.state.database
    async with database.read() as db:
        yield db


# scope="function": commit before the answer leaves. The default scope commits after it.
Db = Annotated[AsyncSession, Depends(_transaction, scope="function")]
ReadDb = Annotated[AsyncSession, Depends(_reading, scope="function")]


class DatabaseAway(ServiceError):
    """Locked, restarting, out of connections: the same request may succeed a moment later."""

    kind = Kind.unavailable

    def __init__(self) -> None:
        super().__init__("the database is busy or not reachable; try again")


class Replayed(Exception):
    """No error: the answer is there already, so the route need not run."""

    def __init__(self, response: Response) -> None:
        super().__init__("answered before")
        self.response = response


class Unexpected(ServiceError):
    kind = Kind.internal

    def __init__(self) -> None:
        super().__init__("unexpected error; the server log has it")


class BrokenText(ServiceError):
    kind = Kind.invalid

    def __init__(self, field: str) -> None:
        super().__init__(f"{field or 'body'}: {NOT_UNICODE}")


class Form(BaseModel):
    """A body in JSON. It has no fields but its own, and no text that could not be stored."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _unicode(cls, data: Any) -> Any:
        field = broken_text(data)
        if field is not None:
            raise BrokenText(field)
        return data


def require_unicode(raw: bytes) -> None:
    """Of JSON that Pydantic will not read. Other faults of it are left to who does."""
    if rb"\ud" not in raw.lower():
        return
    try:
        field = broken_text(json.loads(raw))
    except (ValueError, RecursionError):
        return
    if field is not None:
        raise BrokenText(field)


def problem(
    status: int, title: str, detail: str, *, kind: Kind, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    body = {"title": title, "status": status, "detail": printable(detail), "kind": kind}
    return JSONResponse(body, status, headers, media_type="application/problem+json")


async def _service_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ServiceError)
    await log_whole(error, path=request.url.path)
    status = STATUS[error.kind]
    headers = error_headers(error)
    return problem(status, type(error).__name__, error.message, kind=error.kind, headers=headers)


async def log_whole(error: ServiceError, **where: str) -> None:
    """With what the caller is not told of it."""
    if not error.is_whole:
        await _unless_it_fails(log.awarning("answer.shortened", reason=str(error), **where))


def error_headers(error: ServiceError) -> dict[str, str]:
    """The same on every wire."""
    headers = {"WWW-Authenticate": "Bearer"} if error.kind == Kind.unauthenticated else {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    return headers


async def _replayed(request: Request, found: Exception) -> Response:
    assert isinstance(found, Replayed)
    return found.response


async def _bad_request(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    for found in error.errors():
        if found["type"] == "json_invalid":
            detail = f"body: is not JSON: {found['ctx']['error']} at character {found['loc'][-1]}"
            return problem(400, "InvalidRequest", detail, kind=Kind.malformed)
    return problem(
        422, "InvalidRequest", "; ".join(map(_sentence, error.errors())), kind=Kind.invalid
    )


def _sentence(found: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in found["loc"] if part != "body") or "body"
    said = str(found["msg"]).removeprefix("Value error, ")  # which is Pydantic's, of our own words
    return f"{where}: {said}"


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    kind = next(
        (kind for kind, status in STATUS.items() if status == error.status_code), Kind.malformed
    )
    detail = f"{error.detail}: {request.method} {request.url.path}"
    headers = _allowed(request) if error.status_code == 405 else error.headers
    return problem(error.status_code, "HttpError", detail, kind=kind, headers=headers)


def _allowed(request: Request) -> dict[str, str]:
    """Of every route with this path: the router itself tells only what the first one takes."""
    routes = [each for each in iter_route_contexts(request.app.routes) if each.methods]
    found = {
        method
        for route in routes
        if route.path_regex.match(request.url.path)
        for method in route.methods or ()
    }
    return {"Allow": ", ".join(sorted(found | ({"HEAD"} if "GET" in found else set())))}


async def _database_trouble(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, DatabaseTrouble)
    told = await database_trouble(request, error)
    headers = {"Retry-After": "1"} if isinstance(told, DatabaseAway) else None
    return problem(503, type(told).__name__, told.message, kind=told.kind, headers=headers)


async def database_trouble(request: Request, error: DatabaseTrouble) -> ServiceError:
    """What a caller is told of it; the log has the reason."""
    await _unless_it_fails(log.awarning("database.away", path=request.url.path, reason=str(error)))
    return StorageFull() if error.is_full else DatabaseAway()


async def _client_left(request: Request, error: Exception) -> Response:
    """Nobody reads the answer: whoever sent the body has hung up in the middle of it."""
    await _unless_it_fails(log.ainfo("client.left", path=request.url.path))
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    if is_full(error):
        await _unless_it_fails(
            log.awarning("storage.full", path=request.url.path, reason=str(error))
        )
        return await _service_error(request, StorageFull())
    told = await unexpected(request, error)
    return problem(500, "InternalError", told.message, kind=told.kind)


async def unexpected(request: Request, error: Exception) -> ServiceError:
    """What a caller is told of a fault of ours, which is logged."""
    await _unless_it_fails(log.aexception("request.failed", path=request.url.path, exc_info=error))
    return Unexpected()


async def _unless_it_fails(logged: Awaitable[None]) -> None:
    """A caller gets an answer also where the log cannot be written."""
    with suppress(Exception):
        await logged


class BodyLimit:
    """Refuses a body once it is known to be too large: by its header, or as it comes."""

    def __init__(self, app: ASGIApp, *, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        said = Headers(scope=scope).get("content-length", "")
        expected = int(said) if said.isdecimal() else 0
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if max(expected, received) > self._most:
                raise HTTPException(413, f"the body has more than {self._most} bytes")
            return message

        await self._app(scope, limited, send)


class _Answered(OSError):
    """Tells a response that streams that nobody reads on."""


class HeadAsGet:
    """Every GET answers HEAD too: the same status and headers, and no body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return await self._app(scope, receive, send)

        async def bodiless(message: Message) -> None:
            if message["type"] != "http.response.body":
                return await send(message)
            await send({"type": "http.response.body", "body": b""})
            if message.get("more_body"):
                raise _Answered

        with suppress(_Answered, ClientDisconnect):
            await self._app({**scope, "method": "GET"}, receive, bodiless)


def add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(Replayed, _replayed)
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _client_left)
    app.add_exception_handler(DatabaseTrouble, _database_trouble)
    app.add_exception_handler(Exception, _unexpected)
