"""Deleting versions: tombstone, grace, purge; and the holds that keep one from it."""

from datetime import timedelta
from typing import Annotated, Self

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field

from registry.api.auth import Admin, Member, Viewer
from registry.api.history import Why
from registry.api.packages import Number, Place
from registry.api.preconditions import Expected, etag
from registry.api.schemas import GroupView, List, Moment, Version
from registry.kit.db import Database
from registry.kit.rest import Db, Form, ReadDb
from registry.packages import deletion, holds, purges
from registry.packages.model import PackageAlias, PackageHold
from registry.packages.ref import PackageRef, ref_in

router = APIRouter(prefix="/v1/groups/{group}", tags=["deletion and retention"])

Holder = Annotated[
    str | None,
    Query(max_length=64, pattern="^[a-z0-9_]+$", description="Another token's id; for admins."),
]


async def _grace(request: Request) -> timedelta:
    found: timedelta = request.app.state.grace
    return found


Grace = Annotated[timedelta, Depends(_grace)]
"""How long what is deleted can be restored, as the service is set."""


class NewHold(Form):
    why: str = Field("", description="Shown to whoever wants to delete it.")


class HoldView(BaseModel):
    kind: str = Field(description="alias, session, deployment, merge or person.")
    holder: str = Field(description="Its id; of a person, their token's.")
    name: str
    why: str
    created_at: Moment

    @classmethod
    def of(cls, hold: PackageHold) -> Self:
        return cls(
            kind=hold.holder_kind,
            holder=hold.holder_id,
            name=hold.holder_name,
            why=hold.why,
            created_at=hold.created_at,
        )

    @classmethod
    def of_alias(cls, alias: PackageAlias) -> Self:
        return cls(
            kind="alias", holder=alias.id, name=alias.name, why="", created_at=alias.updated_at
        )


@router.delete("")
async def delete_group(actor: Member, db: Db, group: str) -> GroupView:
    """One that has nothing left but purged versions: it is no longer listed."""
    return GroupView.of(await deletion.delete_group(db, actor, group))


@router.delete("/versions/{version}")
async def delete_version(
    response: Response,
    actor: Member,
    db: Db,
    grace: Grace,
    group: str,
    version: Number,
    expected: Expected,
    why: Why = "",
) -> Version:
    """A tombstone until `purge_at`: it can be restored. Refused while anything holds it."""
    ref = PackageRef(group, version)
    package = await deletion.delete(db, actor, ref, grace=grace, expected=expected, why=why)
    response.headers["ETag"] = etag(package.revision)
    return Version.of(package)


@router.post("/versions/{version}/restore")
async def restore_version(
    response: Response,
    actor: Member,
    db: Db,
    group: str,
    version: Number,
    expected: Expected,
    why: Why = "",
) -> Version:
    """As if it had not been deleted. Possible until its purge begins."""
    ref = PackageRef(group, version)
    package = await deletion.restore(db, actor, ref, expected=expected, why=why)
    response.headers["ETag"] = etag(package.revision)
    return Version.of(package)


@router.post("/versions/{version}/purge")
async def purge_version(
    request: Request,
    response: Response,
    actor: Admin,
    group: str,
    version: Number,
    expected: Expected,
) -> Version:
    """Removes the files of a deleted version now, and for good. Asked again, it goes on."""
    database: Database = request.app.state.database
    ref = PackageRef(group, version)
    package = await purges.purge(database, request.app.state.store, actor, ref, expected=expected)
    response.headers["ETag"] = etag(package.revision)
    return Version.of(package)


@router.get("/versions/{version}/holds")
async def list_holds(actor: Viewer, db: ReadDb, group: str, version: Place) -> List[HoldView]:
    """All that keeps it from being deleted: aliases first, then the others by age."""
    aliases, found = await holds.holds(db, actor, ref_in(group, version))
    return List(data=[*map(HoldView.of_alias, aliases), *map(HoldView.of, found)])


@router.put("/versions/{version}/hold")
async def hold_version(
    actor: Member, db: Db, group: str, version: Number, new: NewHold
) -> HoldView:
    """Keeps it until this token, or an admin, releases it."""
    return HoldView.of(await holds.hold(db, actor, PackageRef(group, version), why=new.why))


@router.delete("/versions/{version}/hold", status_code=204)
async def release_version(
    actor: Member, db: Db, group: str, version: Number, holder: Holder = None, why: Why = ""
) -> None:
    await holds.let_go(db, actor, PackageRef(group, version), holder=holder, why=why)
