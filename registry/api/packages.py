"""Groups, versions and their files."""

from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import Field, StrictBool

from registry.api.auth import Member, Viewer
from registry.api.downloads import RANGES, download, not_modified
from registry.api.moments import Asked, ToCome
from registry.api.preconditions import Expected, etag
from registry.api.schemas import Cursor, File, GroupView, Limit, List, Listing, NewGroup, Version
from registry.kit.db import Database
from registry.kit.rest import Db, Form, ReadDb
from registry.packages import moves, rules, service
from registry.packages.model import Approval, PackageKind, Stage
from registry.packages.ref import LARGEST_VERSION, PackageRef, ref_in
from registry.packages.repository import Wanted

router = APIRouter(prefix="/v1/groups", tags=["groups and versions"])

Number = Annotated[int, Path(ge=1, le=LARGEST_VERSION)]
_Text = Query(min_length=1, max_length=200, pattern=r"^[^\x00]*$")


class Edit(Form):
    """What is left out stays as it is."""

    description: str = ""
    tags: list[str] = Field(default=[], description="All of them: these replace the old.")
    stage: Stage = Stage.none
    expires_at: ToCome | None = Field(None, description="With a zone; null for never.")
    why: str = Field("", description="Kept in the history where the stage moves.")

    @property
    def changes(self) -> moves.Changes:
        given: dict[str, Any] = {name: getattr(self, name) for name in self.model_fields_set}
        given.pop("why", None)
        return cast(moves.Changes, given)


class GroupEdit(Form):
    """What is left out stays as it is."""

    description: str = ""
    require_approval: StrictBool = Field(
        False, description="Promote approved versions only. An admin sets it."
    )
    why: str = Field("", description="Kept in the history where `require_approval` changes.")

    @property
    def changes(self) -> rules.Settings:
        given: dict[str, Any] = {name: getattr(self, name) for name in self.model_fields_set}
        given.pop("why", None)
        return cast(rules.Settings, given)


async def _wanted(
    kind: PackageKind | None = None,
    stage: Stage | None = None,
    approval: Approval | None = None,
    alias: Annotated[str | None, _Text] = None,
    tag: Annotated[str | None, _Text] = None,
    text: Annotated[str | None, _Text] = None,
    session: Annotated[str | None, Query(pattern="^[a-z0-9_]{1,64}$")] = None,
    created_after: Asked | None = None,
    created_before: Asked | None = None,
    deleted: bool = False,
) -> Wanted:
    """`text` is looked for in descriptions, `session` is an id; times are ISO 8601 with a zone;
    `deleted` lists the tombstones instead of what there is."""
    return Wanted(
        kind=kind,
        stage=stage,
        approval=approval,
        alias=alias,
        tag=tag,
        text=text,
        session=session,
        created_after=created_after,
        created_before=created_before,
        deleted=deleted,
    )


Place = Annotated[str, Path(description="A number, an alias, or `latest`.")]


@router.get("")
async def list_groups(
    actor: Viewer, db: ReadDb, limit: Limit = 50, cursor: Cursor = None
) -> Listing[GroupView]:
    page = await service.groups(db, actor, limit=limit, cursor=cursor)
    return Listing.of(page, GroupView.of)


@router.post("", status_code=201)
async def create_group(actor: Member, db: Db, new: NewGroup) -> GroupView:
    group = await service.create_group(db, actor, new.name, description=new.description)
    return GroupView.of(group)


@router.get("/{group}")
async def show_group(response: Response, actor: Viewer, db: ReadDb, group: str) -> GroupView:
    """Its ETag is what a change of it takes as If-Match."""
    found = await service.require_group(db, actor, group)
    response.headers["ETag"] = etag(found.revision)
    return GroupView.of(found)


@router.patch("/{group}")
async def edit_group(
    response: Response, actor: Member, db: Db, group: str, expected: Expected, edit: GroupEdit
) -> GroupView:
    """Its description, and what it asks of a version before it is promoted."""
    found = await rules.edit_group(db, actor, group, edit.changes, expected=expected, why=edit.why)
    response.headers["ETag"] = etag(found.revision)
    return GroupView.of(found)


@router.get("/{group}/latest")
async def show_latest(
    response: Response, actor: Viewer, db: ReadDb, group: str, kind: PackageKind | None = None
) -> Version:
    """The highest number, in all or of a kind."""
    package = await service.latest(db, actor, group, wanted=Wanted(kind=kind))
    response.headers["ETag"] = etag(package.revision)
    return Version.of(package)


@router.get("/{group}/versions")
async def list_versions(
    actor: Viewer,
    db: ReadDb,
    group: str,
    wanted: Annotated[Wanted, Depends(_wanted)],
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Listing[Version]:
    """Newest first: those that match every filter that is given."""
    page = await service.versions(db, actor, group, wanted=wanted, limit=limit, cursor=cursor)
    return Listing.of(page, Version.of)


@router.get("/{group}/versions/{version}")
async def show_version(
    response: Response, actor: Viewer, db: ReadDb, group: str, version: Place
) -> Version:
    """Its ETag is what a change of it takes as If-Match."""
    package = await service.require_version(db, actor, ref_in(group, version))
    response.headers["ETag"] = etag(package.revision)
    return Version.of(package)


@router.patch("/{group}/versions/{version}")
async def edit_version(
    response: Response,
    actor: Member,
    db: Db,
    group: str,
    version: Number,
    expected: Expected,
    edit: Edit,
) -> Version:
    """Description, tags, stage, expiry. What was trained never changes."""
    ref = PackageRef(group, version)
    package = await moves.edit(db, actor, ref, edit.changes, expected=expected, why=edit.why)
    response.headers["ETag"] = etag(package.revision)
    return Version.of(package)


@router.get("/{group}/versions/{version}/files")
async def list_files(actor: Viewer, db: ReadDb, group: str, version: Place) -> List[File]:
    package = await service.require_live(db, actor, ref_in(group, version))
    return List(data=[File.of(file) for file in await service.files(db, package)])


@router.get(
    "/{group}/versions/{version}/files/{path:path}", response_class=Response, responses=RANGES
)
async def download_file(
    request: Request,
    actor: Viewer,
    group: str,
    version: Place,
    path: str,
    *,
    redirect: Annotated[bool, Query(description="Send me to the store, where it can.")] = False,
) -> Response:
    """The bytes, compared with the manifest on their way; the ETag is their SHA-256. One `Range` is
    served too. Who takes a range or the redirect compares the whole with the digest."""
    database: Database = request.app.state.database
    async with database.read() as db:
        package = await service.require_live(db, actor, ref_in(group, version))
        file = await service.require_file(db, package, path)
    return not_modified(request, file.sha256) or await download(
        request, request.app.state.store, package.prefix, file, redirect=redirect
    )
