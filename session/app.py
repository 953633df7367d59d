"""The whole service, wired once: every router, and what they reach."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib.metadata import version

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

import registry.api.collection
import registry.api.deployments
import registry.api.rest
from registry.api.auth import require_permissions
from registry.api.idempotency import IdempotencyKeys
from registry.api.openapi import describe
from registry.kit.rest import BodyLimit, HeadAsGet, add_error_handlers
from registry.kit.stopping import AnswersWhenStopping
from registry.settings import SessionSettings, Settings
from session.api import openai, rest
from session.api.openai_errors import ERROR_FORM
from session.api.sampler import ServiceSampler
from session.api.wire_shapes import SHAPES
from session.claims import CLAIMS
from session.endings.lifetimes import Lifetimes
from session.resources import open_database, open_desk, open_store, webhook_targets
from session.worker.channel import WorkerChannel


def lifetimes(settings: SessionSettings) -> Lifetimes:
    return Lifetimes(
        gap=timedelta(seconds=settings.gap_timeout_s),
        idle=timedelta(seconds=settings.idle_timeout_s),
        age=timedelta(seconds=settings.max_age_s),
        results=timedelta(seconds=settings.keep_results_s),
    )


def create_app(settings: Settings, *, stopping: asyncio.Event | None = None) -> FastAPI:
    """Builds; the lifespan opens and closes. `stopping` ends the requests that are held."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        database = open_database(settings)
        channel = WorkerChannel(database)
        app.state.database = database
        app.state.store = store = open_store(settings)
        app.state.desk = desk = open_desk(settings, database, store)
        app.state.channel = channel
        app.state.targets = webhook_targets(settings)
        app.state.sampler = ServiceSampler(database, channel)
        app.state.grace = settings.grace()
        app.state.lifetimes = lifetimes(settings.sessions)
        try:
            yield
        finally:
            await desk.close()
            await channel.close()
            await database.close()

    # Its pages load nothing from elsewhere, so they work where the service has no internet.
    app = FastAPIOffline(
        title="Modelyard", version=version("modelyard"), lifespan=lifespan, static_url="/docs-files"
    )
    add_error_handlers(app)
    app.add_middleware(IdempotencyKeys)
    app.add_middleware(BodyLimit, most=settings.limits.body_bytes)
    app.add_middleware(HeadAsGet)
    if stopping is not None:
        app.add_middleware(AnswersWhenStopping, stopping=stopping)
    # The first is found first: that of operations, which come by the thousand.
    for router in (rest.router, registry.api.rest.router, registry.api.deployments.router):
        app.include_router(router)
    app.include_router(registry.api.collection.routes(CLAIMS))
    app.include_router(openai.router)

    @app.get("/healthz", tags=["health"])
    async def healthz() -> dict[str, str]:
        """This process answers; it says nothing of the worker."""
        return {"status": "ok"}

    require_permissions(app)
    describe(app, wires=(ERROR_FORM,), shapes=SHAPES)
    return app
