"""Groups, versions and their files."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from registry.api.auth import Member, Viewer
from registry.api.downloads import download, not_modified
from registry.api.preconditions import etag
from registry.api.schemas import Cursor, File, GroupView, Limit, List, Listing, NewGroup, Version
from registry.kit.db import Database
from registry.kit.rest import Db, ReadDb
from registry.packages import service
from registry.packages.model import PackageKind
from registry.packages.ref import LARGEST_VERSION, ref_in
from registry.packages.repository import Wanted

router = APIRouter(prefix="/v1/groups", tags=["groups and versions"])

Number = Annotated[int, Path(ge=1, le=LARGEST_VERSION)]
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
async def show_group(actor: Viewer, db: ReadDb, group: str) -> GroupView:
    return GroupView.of(await service.require_group(db, actor, group))


@router.get("/{group}/versions")
async def list_versions(
    actor: Viewer,
    db: ReadDb,
    group: str,
    kind: PackageKind | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Listing[Version]:
    page = await service.versions(
        db, actor, group, wanted=Wanted(kind=kind), limit=limit, cursor=cursor
    )
    return Listing.of(page, Version.of)


@router.get("/{group}/versions/{version}")
async def show_version(
    response: Response, actor: Viewer, db: ReadDb, group: str, version: Place
) -> Version:
    """Its ETag is what a change of it takes as If-Match."""
    package = await service.require_version(db, actor, ref_in(group, version))
    response.headers["ETag"] = etag(package.revision)
    return Version.of(package)


@router.get("/{group}/versions/{version}/files")
async def list_files(actor: Viewer, db: ReadDb, group: str, version: Place) -> List[File]:
    package = await service.require_version(db, actor, ref_in(group, version))
    return List(data=[File.of(file) for file in await service.files(db, package)])


@router.get("/{group}/versions/{version}/files/{path:path}", response_class=Response)
async def download_file(
    request: Request, actor: Viewer, group: str, version: Place, path: str
) -> Response:
    """The bytes, compared with the manifest on their way; the ETag is their SHA-256."""
    database: Database = request.app.state.database
    async with database.read() as db:
        package = await service.require_version(db, actor, ref_in(group, version))
        file = await service.require_file(db, package, path)
    return not_modified(request, file.sha256) or await download(
        request.app.state.store, package.prefix, file
    )
