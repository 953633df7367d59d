"""Weights from outside: say what comes, send its parts, commit. Each step may be repeated."""

import asyncio
from typing import Annotated, Self
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field, StrictInt

from registry.api.auth import Member, Viewer
from registry.api.schemas import Cursor, File, Limit, Listing, Moment
from registry.artifacts.manifest import FileEntry
from registry.artifacts.store import SignedUrl
from registry.kit.rest import Form, ReadDb
from registry.packages.model import PackageKind
from registry.uploads import service
from registry.uploads.desk import Desk, FilePlan, Plan
from registry.uploads.model import Upload, UploadState, UploadWish

OCTETS = "application/octet-stream"
router = APIRouter(prefix="/v1/groups/{group}/uploads", tags=["uploads"])

_LONGEST_WAIT_S = 60
Wait = Annotated[int, Query(ge=0, le=_LONGEST_WAIT_S, description="Seconds to hold the answer.")]


class NewFile(Form):
    path: str
    size: StrictInt = Field(ge=0, le=2**62)
    sha256: str

    @property
    def entry(self) -> FileEntry:
        return FileEntry(self.path, self.size, self.sha256)


class NewUpload(Form):
    token: str = Field(description="Of your choice. The same token is the same upload.")
    kind: PackageKind
    base_model: str = Field(description="The registered base model that the weights fit.")
    files: list[NewFile] = Field(description="All of them, by the paths they have in a version.")
    parent: str | None = Field(None, description="GROUP@VERSION they were made from.")
    description: str = ""
    metadata: dict[str, str] = Field({})

    @property
    def wish(self) -> UploadWish:
        return UploadWish(
            token=self.token,
            kind=self.kind,
            files=[file.entry for file in self.files],
            base_model=self.base_model,
            parent=self.parent,
            description=self.description,
            metadata=self.metadata,
        )


class Part(BaseModel):
    number: int = Field(description="From 1.")
    size: int
    url: str | None = Field(
        description="Takes a PUT of the part's bytes. A path is this service's own; an address is "
        "the object store's and takes no token. Null: ask again once the others are sent."
    )
    expires_at: Moment | None


class FileProgress(File):
    part_size: int
    received: list[int] = Field(description="The numbers of the parts that are there.")
    missing: list[Part]

    @classmethod
    def of_plan(cls, upload: Upload, plan: FilePlan) -> Self:
        file = plan.file
        return cls(
            path=file.path,
            size=file.size,
            sha256=file.sha256,
            part_size=file.part_size,
            received=list(plan.received),
            missing=[_part(upload, plan, number) for number in plan.missing],
        )


class UploadView(BaseModel):
    id: str
    group: str
    state: UploadState
    kind: str
    base_model: str
    digest: str = Field(description="Of the files as they were listed.")
    size: int
    description: str
    metadata: dict[str, str]
    version: str | None = Field(description="GROUP@VERSION, once it is committed.")
    error: str | None = Field(description="Why it came to nothing.")
    created_at: Moment
    expires_at: Moment = Field(description="What is not committed by then is given up.")

    @classmethod
    def of(cls, upload: Upload) -> Self:
        return cls(
            id=upload.id,
            group=upload.group_name,
            state=UploadState(upload.state),
            kind=upload.kind,
            base_model=upload.base_model,
            digest=upload.digest,
            size=upload.size,
            description=upload.description,
            metadata=upload.user_metadata,
            version=upload.ref,
            error=upload.error,
            created_at=upload.created_at,
            expires_at=upload.expires_at,
        )


class UploadPlan(UploadView):
    files: list[FileProgress]

    @classmethod
    def of_plan(cls, plan: Plan) -> Self:
        files = [FileProgress.of_plan(plan.upload, file) for file in plan.files]
        return cls(**UploadView.of(plan.upload).model_dump(), files=files)


class CommitForm(Form):
    digest: str | None = Field(
        None, description="Compared with that of the upload, if it is given."
    )


def _part(upload: Upload, plan: FilePlan, number: int) -> Part:
    signed = plan.urls.get(number) if plan.urls is not None else None
    return Part(
        number=number,
        size=plan.file.size_of(number),
        url=_own_url(upload, plan.file.path, number) if plan.urls is None else _address(signed),
        expires_at=signed.expires_at if signed else None,
    )


def _own_url(upload: Upload, path: str, number: int) -> str:
    return f"/v1/groups/{upload.group_name}/uploads/{upload.id}/files/{quote(path)}/parts/{number}"


def _address(signed: SignedUrl | None) -> str | None:
    return signed.url if signed else None


@router.get("")
async def list_uploads(
    actor: Viewer,
    db: ReadDb,
    group: str,
    state: UploadState | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Listing[UploadView]:
    """Newest first. A group need not exist before its first version does."""
    page = await service.uploads(db, actor, group, state=state, limit=limit, cursor=cursor)
    return Listing.of(page, UploadView.of)


@router.post("", status_code=201, responses={200: {"model": UploadPlan}})
async def begin_upload(
    request: Request, response: Response, actor: Member, group: str, new: NewUpload
) -> UploadPlan:
    """Answers where each part goes. 200 where the token has an upload already: go on with it."""
    wish = await asyncio.to_thread(lambda: new.wish)
    plan, is_new = await _desk(request).begin(actor, group, wish)
    response.status_code = 201 if is_new else 200
    return await asyncio.to_thread(UploadPlan.of_plan, plan)


@router.get("/{upload}")
async def show_upload(request: Request, actor: Viewer, group: str, upload: str) -> UploadPlan:
    """How far it is: which parts are there, and fresh URLs for those that are not."""
    plan = await _desk(request).plan(actor, group, upload)
    return await asyncio.to_thread(UploadPlan.of_plan, plan)


@router.put(
    "/{upload}/files/{path:path}/parts/{number}",
    status_code=204,
    openapi_extra={"requestBody": {"required": True, "content": {OCTETS: {"schema": {}}}}},
)
async def put_part(
    request: Request, actor: Member, group: str, upload: str, path: str, number: int
) -> None:
    """The part's bytes are the body. For small files, and for a store that cannot presign."""
    await _desk(request).put_part(actor, group, upload, path, number, request.stream())


@router.post("/{upload}/commit", responses={202: {"model": UploadView}})
async def commit_upload(
    request: Request,
    response: Response,
    actor: Member,
    group: str,
    upload: str,
    form: CommitForm | None = None,
    wait: Wait = 20,
) -> UploadView:
    """Reads everything back, checks it and makes the version. 202 while that goes on: ask again;
    the answer is always the one version."""
    desk = _desk(request)
    if form is not None and form.digest is not None:
        await desk.require_digest(actor, group, upload, form.digest)
    found = await desk.commit(actor, group, upload, wait_s=wait)
    if found.version is None:
        response.status_code = 202
        response.headers["Retry-After"] = "1"
    return UploadView.of(found)


@router.delete("/{upload}", status_code=204)
async def abort_upload(request: Request, actor: Member, group: str, upload: str) -> None:
    """Takes out of the store what has come."""
    await _desk(request).abort(actor, group, upload)


def _desk(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk
