import pytest
from fastapi import APIRouter, Depends, FastAPI
from starlette.routing import Mount, Route

from registry.api.auth import (
    Admin,
    Member,
    UnguardedRoutes,
    Viewer,
    permissions,
    require_permissions,
)


async def guarded(actor: Viewer) -> None: ...


async def bare() -> None: ...


async def test_guarded_and_public_routes_start() -> None:
    app = FastAPI()
    app.get("/healthz")(bare)

    @app.get("/a")
    async def member(actor: Member) -> None: ...

    @app.get("/b")
    async def admin(actor: Admin) -> None: ...

    app.get("/c", dependencies=[Depends(guarded)])(bare)
    require_permissions(app)


def test_a_route_without_permission_does_not_start() -> None:
    app = FastAPI()
    app.get("/a")(guarded)
    app.post("/a")(bare)
    with pytest.raises(UnguardedRoutes, match="/a"):
        require_permissions(app)


def test_a_route_in_a_nested_router_does_not_start() -> None:
    inner, outer, app = APIRouter(prefix="/in"), APIRouter(prefix="/out"), FastAPI()
    inner.get("/a")(bare)
    outer.include_router(inner)
    app.include_router(outer)
    with pytest.raises(UnguardedRoutes, match="/out/in/a"):
        require_permissions(app)


@pytest.mark.parametrize("route", [Route("/plain", bare), Mount("/sub", FastAPI())])
def test_a_route_that_is_not_fastapis_does_not_start(route: Route | Mount) -> None:
    app = FastAPI()
    app.router.routes.append(route)
    with pytest.raises(UnguardedRoutes):
        require_permissions(app)


def test_a_websocket_without_permission_does_not_start() -> None:
    app = FastAPI()
    app.websocket("/ws")(bare)
    with pytest.raises(UnguardedRoutes, match="/ws"):
        require_permissions(app)


def test_a_permission_on_the_router_covers_its_routes() -> None:
    router, app = APIRouter(dependencies=[Depends(guarded)]), FastAPI()
    router.get("/a")(bare)
    app.include_router(router)
    require_permissions(app)


def test_of_two_permissions_on_one_route_the_larger_is_needed() -> None:
    router, app = APIRouter(dependencies=[Depends(guarded)]), FastAPI()

    @router.get("/a/{path:path}")
    async def admin(actor: Admin, path: str) -> None: ...

    router.post("/b")(bare)
    app.include_router(router, prefix="/v1")
    assert permissions(app) == {("GET", "/v1/a/{path}"): "admin", ("POST", "/v1/b"): "viewer"}
