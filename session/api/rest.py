"""Our REST for sessions, operations, samples and merges. Translation only."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Annotated, TypeVar

from fastapi import APIRouter, Body, Query, Request, Response

from registry.api.auth import Member, Viewer
from registry.artifacts.store import BlobStore
from registry.kit.db import Database
from registry.kit.rest import Db, ReadDb, require_unicode
from registry.packages.service import ref_in
from session import wire
from session.api.answers import acknowledged, answer
from session.api.samples import take_samples
from session.api.schemas import (
    MergeOut,
    MetricsOut,
    SessionIn,
    SessionOut,
    SessionPage,
    StepMetrics,
)
from session.api.waiting import operation_once_ended, until
from session.api.wire_shapes import exchange
from session.endings import service as endings
from session.endings.lifetimes import Lifetimes
from session.lifecycle import service as lifecycle
from session.lifecycle.model import Status
from session.merges import service as merges
from session.operations import service as operations
from session.operations.service import NewOperation, StoredBody
from session.operations.standing import standing, standings
from session.worker.channel import WorkerChannel

T = TypeVar("T")
router = APIRouter(prefix="/v1")
_SMALL = 2**16
Wait = Annotated[float, Query(ge=0, le=25, description="seconds to hold the answer for news")]


@router.post("/sessions", status_code=201, tags=["sessions"])
async def create_session(
    request: Request, actor: Member, body: Annotated[SessionIn, Body()]
) -> SessionOut:
    state = request.app.state
    database: Database = state.database
    channel: WorkerChannel = state.channel
    async with database.begin() as db:
        session, lora = await lifecycle.create(db, actor, body.wish())
        await operations.accept_creation(
            db, session, lora, source=session.parent_ref, with_optimizer=body.with_optimizer
        )
        shown = await standing(db, actor, session.id)
    channel.hint()
    return SessionOut.of(shown, state.lifetimes)


@router.get("/sessions", tags=["sessions"])
async def list_sessions(
    request: Request,
    db: ReadDb,
    actor: Viewer,
    status: Status | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: str | None = None,
) -> SessionPage:
    page = await standings(db, actor, status=status, limit=limit, cursor=cursor)
    lifetimes: Lifetimes = request.app.state.lifetimes
    data = [SessionOut.of(row, lifetimes) for row in page.items]
    return SessionPage(data=data, next_cursor=page.next_cursor)


@router.get("/sessions/{name}", tags=["sessions"])
async def show_session(request: Request, actor: Viewer, name: str, wait: Wait = 0) -> SessionOut:
    """By id or name. With `wait`, held while the session is starting or stopping."""
    state = request.app.state
    database: Database = state.database

    async def look() -> SessionOut | None:
        async with database.read() as db:
            found = await standing(db, actor, name)
        shown.append(SessionOut.of(found, state.lifetimes))
        return None if found.status in (Status.created, Status.stopping) else shown[-1]

    shown: list[SessionOut] = []
    return await until(look, wait) or shown[-1]


@router.post("/sessions/{name}/stop", status_code=202, tags=["sessions"])
async def stop_session(request: Request, actor: Member, name: str) -> SessionOut:
    """Accepted operations are run first."""
    state = request.app.state
    database: Database = state.database
    channel: WorkerChannel = state.channel
    async with database.begin() as db:
        session = await lifecycle.stop(db, actor, name)
        shown = await standing(db, actor, session.id)
    channel.hint(session.id)
    return SessionOut.of(shown, state.lifetimes)


@router.post("/sessions/{name}/heartbeat", tags=["sessions"])
async def beat_session(request: Request, db: Db, actor: Member, name: str) -> SessionOut:
    """It is not idle, though nothing is asked of it now. 409 with the reason once it has ended."""
    session = await lifecycle.beat(db, actor, name)
    shown = await standing(db, actor, session.id)
    return SessionOut.of(shown, request.app.state.lifetimes)


@router.delete("/sessions/{name}", status_code=204, tags=["sessions"])
async def delete_session(request: Request, actor: Member, name: str) -> None:
    """Once it has ended: operations, results and sampler weights go; versions and usage stay."""
    await endings.delete(request.app.state.database, request.app.state.store, actor, name)


@router.get("/sessions/{name}/metrics", tags=["sessions"])
async def show_metrics(db: ReadDb, actor: Viewer, name: str) -> MetricsOut:
    """What each optimizer step measured, and what the client logged, by step."""
    steps: dict[int, dict[str, float]] = {}
    for row in await lifecycle.metrics(db, actor, name):
        steps.setdefault(row.step, {})[row.name] = row.value
    return MetricsOut(data=[StepMetrics(step=step, metrics=m) for step, m in steps.items()])


@router.post("/sessions/{name}/metrics", status_code=204, tags=["sessions"])
async def log_metrics(db: Db, actor: Member, name: str, body: StepMetrics) -> None:
    await lifecycle.log_metrics(db, actor, name, step=body.step, numbers=body.metrics)


@router.post(
    "/sessions/{name}/operations",
    status_code=202,
    tags=["operations"],
    openapi_extra=exchange(taken=wire.Submission, answered=wire.Operation, status=202),
)
async def submit(request: Request, actor: Member, name: str, wait: Wait = 0) -> Response:
    """Stored before it is acknowledged; run in the order of its number. With `wait`, held for the
    outcome; who accepts `application/vnd.modelyard.frames` gets the operation as it was stored at
    once and, behind it, what it came to."""
    state = request.app.state
    database: Database = state.database
    store: BlobStore = state.store
    raw, json = await _body(request)
    form, stored = await _apart(raw, partial(_read, raw, json=json))
    if stored.is_large:
        async with database.read() as db:
            session = await lifecycle.require_session(db, actor, name)
        stored = await operations.put_aside(store, session, stored)
    source = form.body.source if isinstance(form.body, wire.Load) else None
    new = NewOperation(form.number, form.token, wire.kind_of(form.body), stored, source)
    async with database.begin(keyed=True) as db:
        accepted = await operations.accept_next(db, actor, name, new)
        if accepted is None:
            session = await lifecycle.require_session(db, actor, name, lock=True)
            accepted = await operations.accept(db, session, new)
    await operations.drop_duplicate(store, accepted, stored)
    return await acknowledged(request, state.channel, accepted, wait)


@router.get(
    "/operations/{operation_id}",
    tags=["operations"],
    openapi_extra=exchange(answered=wire.Operation, status=200),
)
async def show_operation(
    request: Request, actor: Viewer, operation_id: str, wait: Wait = 0
) -> Response:
    """Held until the operation has ended, or for `wait` seconds."""
    state = request.app.state
    found = await operation_once_ended(state.database, state.channel, actor, operation_id, wait)
    return answer(request, operations.as_wire(found))


@router.post(
    "/samples",
    tags=["sampling"],
    openapi_extra=exchange(taken=wire.Sampling, answered=wire.Samples, status=200),
)
async def sample(request: Request, actor: Member) -> Response:
    """Held until all samples are there. The same token again gives the same answer."""
    state = request.app.state
    raw, json = await _body(request)
    return answer(request, await take_samples(state.database, state.channel, actor, raw, json=json))


@router.post(
    "/groups/{group}/versions/{version}/merge", status_code=202, tags=["groups and versions"]
)
async def merge(request: Request, actor: Member, group: str, version: str) -> MergeOut:
    """Ask for a `merged` version of a `state` or an `adapter`."""
    database: Database = request.app.state.database
    async with database.begin() as db:
        asked = await merges.request(db, actor, ref_in(group, version))
    channel: WorkerChannel = request.app.state.channel
    channel.hint()
    return MergeOut.of(asked)


@router.get("/merges/{merge_id}", tags=["groups and versions"])
async def show_merge(request: Request, actor: Viewer, merge_id: str, wait: Wait = 0) -> MergeOut:
    database: Database = request.app.state.database

    async def look() -> MergeOut | None:
        async with database.read() as db:
            found = await merges.require_merge(db, actor, merge_id)
        shown.append(MergeOut.of(found))
        return shown[-1] if found.is_final else None

    shown: list[MergeOut] = []
    return await until(look, wait) or shown[-1]


def _read(raw: bytes, *, json: bool) -> tuple[wire.Submission, StoredBody]:
    form = operations.read_submission(raw, json=json)
    return form, operations.packed_body(form.body)


async def _body(request: Request) -> tuple[bytes, bool]:
    """As it came, and whether it is JSON."""
    raw = await request.body()
    is_json = request.headers.get("content-type", "").startswith("application/json")
    if is_json:
        await _apart(raw, partial(require_unicode, raw))
    return raw, is_json


async def _apart(raw: bytes, work: Callable[[], T]) -> T:
    """A large body is read in a thread: the other requests go on meanwhile."""
    return await asyncio.to_thread(work) if len(raw) > _SMALL else work()
