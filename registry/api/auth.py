"""Who is asking, on every route: a route that does not say who may call it does not start."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Annotated

from fastapi import Depends, FastAPI, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import iter_route_contexts
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from registry.access import service
from registry.access.actor import Actor, Role
from registry.access.errors import TokenMissing
from registry.api import idempotency
from registry.kit.db import Database
from registry.kit.errors import Kind, ServiceError

PUBLIC = frozenset(
    ("/healthz", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json", "/docs-files")
)

_bearer = HTTPBearer(auto_error=False, description="An API token, as `modelyard tokens` makes it")
_Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


async def _authenticated(request: Request, credentials: _Credentials) -> Actor:
    """Its transaction is over before the handler begins, which may wait for long."""
    if credentials is None:
        raise TokenMissing
    database: Database = request.app.state.database
    async with database.ask() as db:
        return await service.authenticate(db, credentials.credentials)


def _at_least(role: Role) -> Callable[..., Awaitable[Actor]]:
    async def permitted(
        request: Request, actor: Annotated[Actor, Depends(_authenticated)]
    ) -> Actor:
        _require_plain_names(request)
        service.require_role(actor, role)
        _require_known_parameters(request)
        await idempotency.claim(request, actor)
        return actor

    return permitted


_viewer, _member, _admin = map(_at_least, Role)
_PERMISSIONS: Mapping[object, Role] = dict(zip((_viewer, _member, _admin), Role, strict=True))

Viewer = Annotated[Actor, Depends(_viewer)]
Member = Annotated[Actor, Depends(_member)]
Admin = Annotated[Actor, Depends(_admin)]


class SlashInName(ServiceError):
    """The address was taken apart at a slash that stood for itself: it means another thing now."""

    kind = Kind.invalid

    def __init__(self, path: str) -> None:
        super().__init__(f"{path[:200]}: no name in an address has a slash, and this has %2F")


_PAGING = frozenset(("limit", "cursor"))
"""Every list may be asked in pages, also one that is short and always answers whole."""


class UnknownParameter(ServiceError):
    """A filter with a slip in its name would answer with everything."""

    kind = Kind.invalid

    def __init__(self, name: str, known: Iterable[str]) -> None:
        there = ", ".join(sorted(known)) or "none"
        super().__init__(f"{name[:80]}: no query parameter of this call (it has {there})")


class UnguardedRoutes(RuntimeError):
    """A mistake in the wiring, found before the first request."""


def require_permissions(app: FastAPI) -> None:
    """Refuse to start with a route that anybody could call."""
    unguarded = sorted(
        str(route.path)
        for route in iter_route_contexts(app.routes)
        if route.path not in PUBLIC and _role(getattr(route, "dependant", None)) is None
    )
    if unguarded:
        raise UnguardedRoutes(f"no Viewer, Member or Admin on: {', '.join(unguarded)}")


def permissions(app: FastAPI) -> dict[tuple[str, str], Role]:
    """The least role for each method and path of the OpenAPI document: the one table of them."""
    return {
        (method, str(route.path_format)): role
        for route in iter_route_contexts(app.routes)
        if (role := _role(getattr(route, "dependant", None))) is not None
        for method in route.methods or ()
    }


def _require_plain_names(request: Request) -> None:
    raw: bytes = request.scope.get("raw_path") or b""
    if b"%2f" in raw.lower() and ":path}" not in request.scope["route"].path:
        raise SlashInName(raw.decode("ascii", "replace"))


def _require_known_parameters(request: Request) -> None:
    """Of our own routes: another wire's clients may send what its other servers know."""
    if request.query_params and request.url.path.startswith("/v1/"):
        known = _query_names(request.scope["route"].dependant)
        for name in request.query_params:
            if name not in known | _PAGING:
                raise UnknownParameter(name, known)


def _query_names(dependant: Dependant) -> set[str]:
    nested = (_query_names(each) for each in dependant.dependencies)
    return {field.alias for field in dependant.query_params}.union(*nested)


def _role(dependant: Dependant | None) -> Role | None:
    """Of several on one route, the largest is what it takes."""
    if dependant is None:
        return None
    found = {_PERMISSIONS[call] for call in _calls(dependant) if call in _PERMISSIONS}
    return next((role for role in reversed(Role) if role in found), None)


def _calls(dependant: Dependant) -> Iterator[object]:
    for dependency in dependant.dependencies:
        yield dependency.call
        yield from _calls(dependency)
