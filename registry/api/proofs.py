"""What can be shown of one version: where it came from, and that its bytes are what they were."""

from typing import Self

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from registry.api.auth import Viewer
from registry.api.packages import Place
from registry.api.schemas import Moment
from registry.artifacts.audit import Finding
from registry.kit.db import Database
from registry.kit.rest import ReadDb
from registry.packages import audits, lineage, service
from registry.packages.model import Package
from registry.packages.ref import ref_in

router = APIRouter(prefix="/v1/groups/{group}/versions/{version}", tags=["groups and versions"])


class Node(BaseModel):
    ref: str
    kind: str
    digest: str
    parent: str | None
    session: str | None
    step: int
    base_model: str
    base_digest: str
    created_at: Moment
    deleted_at: Moment | None
    purged_at: Moment | None = Field(description="A tombstone: its files are gone.")

    @classmethod
    def of(cls, package: Package) -> Self:
        return cls(
            ref=package.ref,
            kind=package.kind,
            digest=package.digest,
            parent=package.parent.ref if package.parent else None,
            session=package.session_id,
            step=package.step,
            base_model=package.base_model,
            base_digest=package.base_digest,
            created_at=package.created_at,
            deleted_at=package.deleted_at,
            purged_at=package.purged_at,
        )


class Edge(BaseModel):
    source: str = Field(serialization_alias="from")
    target: str = Field(serialization_alias="to")


class LineageView(BaseModel):
    """Ancestors come first, the oldest ahead; then the version; then what was made from it."""

    root: str
    nodes: list[Node]
    edges: list[Edge] = Field(description="From a parent to what was made from it.")
    cut: bool = Field(description="There are more than a thousand ancestors, or descendants.")

    @classmethod
    def of(cls, found: lineage.Lineage) -> Self:
        shown = {package.id for package in found.nodes}
        edges = [
            Edge(source=package.parent.ref, target=package.ref)
            for package in found.nodes
            if package.parent and package.parent.id in shown
        ]
        nodes = [Node.of(package) for package in found.nodes]
        return cls(root=found.root.ref, nodes=nodes, edges=edges, cut=found.is_cut)


class FileFinding(BaseModel):
    path: str
    size: int
    problem: str | None = Field(description="Null for a file that is as it was registered.")

    @classmethod
    def of(cls, finding: Finding) -> Self:
        return cls.model_validate(finding, from_attributes=True)


class Verification(BaseModel):
    ref: str
    digest: str
    intact: bool
    manifest: bool = Field(description="Whether the list of files still has the digest.")
    files: list[FileFinding]

    @classmethod
    def of(cls, audit: audits.Audit) -> Self:
        return cls(
            ref=audit.package.ref,
            digest=audit.package.digest,
            intact=audit.is_intact,
            manifest=audit.has_its_manifest,
            files=[FileFinding.of(finding) for finding in audit.findings],
        )


@router.get("/lineage")
async def show_lineage(actor: Viewer, db: ReadDb, group: str, version: Place) -> LineageView:
    return LineageView.of(await lineage.lineage(db, actor, ref_in(group, version)))


@router.post("/verify")
async def verify(request: Request, actor: Viewer, group: str, version: Place) -> Verification:
    """Reads every byte again, so it takes as long as that takes. Nothing is changed."""
    database: Database = request.app.state.database
    async with database.read() as db:
        package = await service.require_live(db, actor, ref_in(group, version))
        files = await service.files(db, package)
    return Verification.of(await audits.verify(request.app.state.store, package, files))
