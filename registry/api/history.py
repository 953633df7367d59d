"""Aliases and approval move by compare-and-set; a group's history tells every such move."""

from typing import Annotated, Self

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field, StrictBool, StrictInt

from registry.api.auth import Member, Viewer
from registry.api.moments import Asked
from registry.api.packages import Number
from registry.api.preconditions import Expected, ExpectedOrNone, etag
from registry.api.schemas import Cursor, Limit, List, Listing, Moment, Version
from registry.kit.clock import now
from registry.kit.rest import Db, Form, ReadDb
from registry.packages import moves
from registry.packages.model import Approval, EventKind, PackageAlias, PackageEvent
from registry.packages.ref import LARGEST_VERSION, PackageRef

router = APIRouter(prefix="/v1/groups/{group}", tags=["aliases, approval and history"])

AliasName = Annotated[str | None, Query(pattern="^[a-zA-Z0-9-]{1,63}$")]
OneVersion = Annotated[int | None, Query(ge=1, le=LARGEST_VERSION)]
At = Annotated[Asked | None, Query(description="ISO 8601 with a zone: only what was by then.")]
Why = Annotated[str, Query(max_length=1024, description="Kept in the history.")]


class Decision(Form):
    approval: Approval
    why: str = ""


class Target(Form):
    version: StrictInt = Field(ge=1, le=LARGEST_VERSION)
    why: str = ""
    protected: StrictBool | None = Field(
        None, description="Only an admin moves it; null leaves that."
    )


class AliasView(BaseModel):
    alias: str
    version: int
    ref: str = Field(description="GROUP@VERSION that it points at.")
    digest: str
    protected: bool
    revision: int = Field(description="Also the ETag.")
    updated_at: Moment

    @classmethod
    def of(cls, alias: PackageAlias) -> Self:
        package = alias.package
        assert package is not None  # a list holds none that were removed
        return cls(
            alias=alias.name,
            version=package.version,
            ref=package.ref,
            digest=package.digest,
            protected=alias.is_protected,
            revision=alias.revision,
            updated_at=alias.updated_at,
        )


class Move(BaseModel):
    kind: EventKind
    alias: str | None
    version: int | None = Field(description="It is about; null for a setting of the group.")
    digest: str | None = Field(description="Of that version.")
    source: str | None = Field(serialization_alias="from")
    target: str | None = Field(serialization_alias="to")
    role: str = Field(description="The role of whoever did it.")
    token: str | None = Field(description="The id of the token they used.")
    why: str
    created_at: Moment = Field(serialization_alias="at")

    @classmethod
    def of(cls, event: PackageEvent) -> Self:
        return cls.model_validate(event, from_attributes=True)


@router.put("/versions/{version}/approval")
async def decide(
    response: Response,
    actor: Member,
    db: Db,
    group: str,
    version: Number,
    expected: Expected,
    decision: Decision,
) -> Version:
    """Approve or reject a version, or take either back. If-Match is the version's ETag."""
    ref = PackageRef(group, version)
    package = await moves.decide(
        db, actor, ref, approval=decision.approval, expected=expected, why=decision.why
    )
    response.headers["ETag"] = etag(package.revision)
    return Version.of(package)


@router.get("/aliases")
async def list_aliases(
    actor: Viewer, db: ReadDb, group: str, limit: Limit = 50, cursor: Cursor = None
) -> Listing[AliasView]:
    page = await moves.aliases(db, actor, group, limit=limit, cursor=cursor)
    return Listing.of(page, AliasView.of)


@router.get("/aliases/{alias}")
async def show_alias(
    response: Response, actor: Viewer, db: ReadDb, group: str, alias: str
) -> AliasView:
    found = await moves.require_alias(db, actor, group, alias)
    response.headers["ETag"] = etag(found.revision)
    return AliasView.of(found)


@router.put("/aliases/{alias}")
async def point(
    response: Response,
    actor: Member,
    db: Db,
    group: str,
    alias: str,
    expected: ExpectedOrNone,
    target: Target,
) -> AliasView:
    """Let it point at another version: If-Match is its ETag, `If-None-Match: *` makes it."""
    found = await moves.point(
        db,
        actor,
        group,
        alias,
        version=target.version,
        expected=expected,
        why=target.why,
        protected=target.protected,
    )
    response.headers["ETag"] = etag(found.revision)
    return AliasView.of(found)


@router.delete("/aliases/{alias}", status_code=204)
async def remove_alias(
    actor: Member, db: Db, group: str, alias: str, expected: Expected, why: Why = ""
) -> None:
    await moves.unpoint(db, actor, group, alias, expected=expected, why=why)


@router.get("/history")
async def list_history(
    actor: Viewer,
    db: ReadDb,
    group: str,
    alias: AliasName = None,
    version: OneVersion = None,
    at: At = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Listing[Move]:
    """Every move, newest first. With `alias` and `at`, the first row says what it was then."""
    page = await moves.history(
        db, actor, group, alias=alias, version=version, at=at, limit=limit, cursor=cursor
    )
    return Listing.of(page, Move.of)


@router.get("/standing")
async def show_standing(
    actor: Viewer,
    db: ReadDb,
    group: str,
    at: At = None,
) -> List[Move]:
    """Where each alias pointed at that time, or now: the move that had made it so."""
    found = await moves.standing(db, actor, group, at=at or now())
    return List(data=[Move.of(each) for each in found])
