"""A deployment is a public name; a revision is one version started under it; a move is an event."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from registry.deployments.errors import DeploymentFailed, DeploymentStarting, NothingToRollBack
from registry.kit.clock import now
from registry.kit.db import Base, UtcDateTime


class RevisionStatus(StrEnum):
    """`active` gets the traffic. `warm` is the one before it, kept running for a rollback."""

    starting = "starting"
    active = "active"
    warm = "warm"
    failed = "failed"
    stopped = "stopped"


LIVE = (RevisionStatus.starting, RevisionStatus.active, RevisionStatus.warm)


class DeploymentStatus(StrEnum):
    starting = "starting"
    active = "active"
    failed = "failed"


class EventKind(StrEnum):
    promote = "promote"
    rollback = "rollback"
    activate = "activate"
    fail = "fail"
    restart = "restart"


class Deployment(Base):
    __tablename__ = "deployments"
    __table_args__ = (UniqueConstraint("account_id", "name"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    name: Mapped[str]
    last_number: Mapped[int] = mapped_column(default=0)
    # No foreign keys: a revision points at its deployment, and tables cannot point at each other.
    served_revision_id: Mapped[str | None]
    previous_revision_id: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)


class DeploymentRevision(Base):
    """`ref`, `digest` and `base_model` repeat the package, so that a route is one row.

    An active revision without `address` is starting again: its process died with the service.
    """

    __tablename__ = "deployment_revisions"
    __table_args__ = (UniqueConstraint("deployment_id", "number"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    deployment_id: Mapped[str] = mapped_column(ForeignKey("deployments.id"))
    number: Mapped[int]
    package_id: Mapped[str] = mapped_column(ForeignKey("packages.id"), index=True)
    ref: Mapped[str]
    digest: Mapped[str]
    base_model: Mapped[str]
    target: Mapped[str]
    status: Mapped[str] = mapped_column(default=RevisionStatus.starting, index=True)
    served_name: Mapped[str]
    address: Mapped[str | None]
    error: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    ready_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class DeploymentEvent(Base):
    """One move: who, from which version, to which, why. Rows are added and never changed."""

    __tablename__ = "deployment_events"

    id: Mapped[int] = mapped_column(primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    deployment_id: Mapped[str] = mapped_column(ForeignKey("deployments.id"), index=True)
    kind: Mapped[str]
    actor: Mapped[str]
    source: Mapped[str | None]
    target: Mapped[str | None]
    digest: Mapped[str | None]
    why: Mapped[str] = mapped_column(default="")
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)


@dataclass(frozen=True, slots=True)
class Route:
    """Where a public name leads at this moment."""

    name: str
    ref: str
    address: str
    served_name: str
    base_model: str


@dataclass(frozen=True, slots=True)
class Standing:
    """A deployment with the three revisions that say how it stands."""

    deployment: Deployment
    served: DeploymentRevision | None
    previous: DeploymentRevision | None
    latest: DeploymentRevision | None
    approval: str | None
    """What people say now of the version that is served. It moves no traffic by itself."""

    @classmethod
    def of(
        cls,
        deployment: Deployment,
        revisions: Sequence[DeploymentRevision],
        *,
        approval: str | None = None,
    ) -> "Standing":
        """`revisions` are the deployment's newest and those that it points at."""
        by_id = {revision.id: revision for revision in revisions}
        return cls(
            deployment,
            by_id.get(deployment.served_revision_id or ""),
            by_id.get(deployment.previous_revision_id or ""),
            max(revisions, key=lambda revision: revision.number, default=None),
            approval,
        )

    @property
    def status(self) -> DeploymentStatus:
        if self.served is not None:
            return DeploymentStatus.active if self.served.address else DeploymentStatus.starting
        is_starting = self.latest is None or self.latest.status == RevisionStatus.starting
        return DeploymentStatus.starting if is_starting else DeploymentStatus.failed

    @property
    def starting(self) -> DeploymentRevision | None:
        """The revision that is to take the traffic once it is healthy."""
        waits = self.latest is not None and self.latest.status == RevisionStatus.starting
        return self.latest if waits else None

    @property
    def pending(self) -> DeploymentRevision | None:
        """The newest revision while it starts, or after it failed to."""
        open_ends = (RevisionStatus.starting, RevisionStatus.failed)
        return self.latest if self.latest and self.latest.status in open_ends else None

    def require_previous(self) -> DeploymentRevision:
        if self.previous is None:
            raise NothingToRollBack(self.deployment.name)
        return self.previous

    def route(self) -> Route:
        """Raises with the reason where nothing can answer at this moment."""
        name, served = self.deployment.name, self.served
        if served is not None and served.address:
            return Route(name, served.ref, served.address, served.served_name, served.base_model)
        if self.status == DeploymentStatus.starting:
            raise DeploymentStarting(name)
        raise DeploymentFailed(name, (self.latest and self.latest.error) or "no reason is known")
