"""FastAPI pieces shared by every router: transactions, and problem+json for every error."""

from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

import structlog
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.ext.asyncio import AsyncSession
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from registry.kit.db import AWAY, Database
from registry.kit.errors import Kind, ServiceError

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


def problem(
    status: int, title: str, detail: str, *, kind: Kind, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    body = {"title": title, "status": status, "detail": detail, "kind": kind}
    return JSONResponse(body, status, headers, media_type="application/problem+json")


async def _service_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ServiceError)
    status = STATUS[error.kind]
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return problem(status, type(error).__name__, error.message, kind=error.kind, headers=headers)


async def _bad_request(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return problem(
        422, "InvalidRequest", "; ".join(map(_sentence, error.errors())), kind=Kind.invalid
    )


def _sentence(found: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in found["loc"] if part != "body") or "body"
    return f"{where}: {found['msg']}"


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    kind = next(
        (kind for kind, status in STATUS.items() if status == error.status_code), Kind.malformed
    )
    detail = f"{error.detail}: {request.method} {request.url.path}"
    return problem(error.status_code, "HttpError", detail, kind=kind, headers=error.headers)


async def _database_away(request: Request, error: Exception) -> JSONResponse:
    """Locked, restarting, out of connections: the same request may succeed a moment later."""
    await log.awarning("database.away", path=request.url.path, reason=str(error.__cause__ or error))
    return problem(
        503,
        "DatabaseAway",
        "the database is busy or not reachable; try again",
        kind=Kind.unavailable,
        headers={"Retry-After": "1"},
    )


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    await log.aexception("request.failed", path=request.url.path, exc_info=error)
    return problem(
        500, "InternalError", "unexpected error; the server log has it", kind=Kind.internal
    )


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


def add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(HTTPException, _http_error)
    for away in AWAY:
        app.add_exception_handler(away, _database_away)
    app.add_exception_handler(Exception, _unexpected)
