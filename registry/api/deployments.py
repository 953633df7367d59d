"""Deployments: which version answers under a public name, and every move of that."""

from typing import Self

from fastapi import APIRouter
from pydantic import BaseModel, Field

from registry.api.auth import Member, Viewer
from registry.api.schemas import Cursor, Limit, Listing, Moment
from registry.deployments import service
from registry.deployments.model import (
    DeploymentEvent,
    DeploymentRevision,
    DeploymentStatus,
    EventKind,
    RevisionStatus,
    Standing,
)
from registry.kit.rest import Db, Form, ReadDb
from registry.packages.ref import parse_ref

router = APIRouter(prefix="/v1/deployments", tags=["deployments"])


class Promotion(Form):
    version: str = Field(description="GROUP@VERSION or GROUP:ALIAS, of kind merged.")


class Pending(BaseModel):
    """The newest promotion or rollback, while it starts or after it failed."""

    version: str
    status: RevisionStatus
    error: str | None

    @classmethod
    def of(cls, revision: DeploymentRevision) -> Self:
        return cls(
            version=revision.ref, status=RevisionStatus(revision.status), error=revision.error
        )


class DeploymentView(BaseModel):
    name: str
    status: DeploymentStatus
    version: str | None = Field(description="What traffic gets now.")
    approval: str | None = Field(
        description="Of `version`, now. A rejection moves no traffic by itself."
    )
    previous: str | None = Field(description="What a rollback returns to.")
    pending: Pending | None
    revision: int
    created_at: Moment
    updated_at: Moment

    @classmethod
    def of(cls, standing: Standing) -> Self:
        deployment = standing.deployment
        return cls(
            name=deployment.name,
            status=standing.status,
            version=standing.served.ref if standing.served else None,
            approval=standing.approval,
            previous=standing.previous.ref if standing.previous else None,
            pending=Pending.of(standing.pending) if standing.pending else None,
            revision=deployment.last_number,
            created_at=deployment.created_at,
            updated_at=deployment.updated_at,
        )


class EventView(BaseModel):
    kind: EventKind
    actor: str = Field(description="The role of whoever asked, or `deployer`.")
    source: str | None = Field(serialization_alias="from")
    target: str | None = Field(serialization_alias="to")
    digest: str | None
    why: str
    created_at: Moment = Field(serialization_alias="at")

    @classmethod
    def of(cls, event: DeploymentEvent) -> Self:
        return cls.model_validate(event, from_attributes=True)


@router.get("")
async def list_deployments(
    actor: Viewer, db: ReadDb, limit: Limit = 50, cursor: Cursor = None
) -> Listing[DeploymentView]:
    page = await service.deployments(db, actor, limit=limit, cursor=cursor)
    return Listing.of(page, DeploymentView.of)


@router.get("/{name}")
async def show_deployment(actor: Viewer, db: ReadDb, name: str) -> DeploymentView:
    return DeploymentView.of(await service.require_deployment(db, actor, name))


@router.get("/{name}/history")
async def show_history(
    actor: Viewer, db: ReadDb, name: str, limit: Limit = 50, cursor: Cursor = None
) -> Listing[EventView]:
    """Newest first."""
    page = await service.history(db, actor, name, limit=limit, cursor=cursor)
    return Listing.of(page, EventView.of)


@router.post("/{name}/promote", status_code=202)
async def promote(actor: Member, db: Db, name: str, promotion: Promotion) -> DeploymentView:
    """Answers at once: `pending` says how the version starts, `version` who gets the traffic."""
    ref = parse_ref(promotion.version)
    return DeploymentView.of(await service.promote(db, actor, name=name, ref=ref))


@router.post("/{name}/rollback", status_code=202)
async def roll_back(actor: Member, db: Db, name: str) -> DeploymentView:
    return DeploymentView.of(await service.rollback(db, actor, name=name))
