"""What was used, by time and in total."""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query

from registry.api.auth import Viewer
from registry.api.moments import Asked
from registry.api.schemas import Cursor, Limit, SessionTokens, UsagePage, UsageTotals
from registry.kit.clock import now
from registry.kit.rest import ReadDb
from registry.usage import service
from registry.usage.service import GroupBy, Width

router = APIRouter(prefix="/v1/usage", tags=["usage"])

_DEFAULT_SPAN = timedelta(days=7)
Time = Annotated[Asked | None, Query(description="ISO 8601 with a zone, or seconds since 1970.")]
SessionId = Annotated[str | None, Query(pattern="^[a-z0-9_]{1,64}$")]


@router.get("")
async def list_usage(
    actor: Viewer,
    db: ReadDb,
    session: SessionId = None,
    start: Time = None,
    end: Time = None,
    bucket_width: Width = Width.day,
    group_by: GroupBy | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> UsagePage:
    """Spans of UTC, oldest first; without `end` up to now, without `start` the 7 days before."""
    until = end or now()
    page = await service.buckets(
        db,
        actor,
        start=start or until - _DEFAULT_SPAN,
        end=until,
        width=bucket_width,
        group_by=group_by,
        session_id=session,
        limit=limit,
        cursor=cursor,
    )
    return UsagePage.of(page, group_by)


@router.get("/totals")
async def show_totals(actor: Viewer, db: ReadDb, session: SessionId = None) -> UsageTotals:
    tokens = await service.totals(db, actor, session_id=session)
    sessions = {session: tokens} if session else await service.by_session(db, actor)
    return UsageTotals(
        session=session,
        tokens=tokens,
        sessions=[SessionTokens(session=key, tokens=used) for key, used in sessions.items()],
    )
