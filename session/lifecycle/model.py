"""A training session is one live adapter on one base model; a worker holds its lease."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from registry.access.model import Account
from registry.kit.clock import now
from registry.kit.db import Base, UtcDateTime
from session.lifecycle.errors import SessionEnded, SessionNotEnded, TransitionRefused


class Status(StrEnum):
    """`blocked` is in no row: a running session is blocked while the log lacks its next operation
    and has later ones, so no crash can leave it wrong."""

    created = "created"
    running = "running"
    blocked = "blocked"
    stopping = "stopping"
    stopped = "stopped"
    expired = "expired"
    failed = "failed"


TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    Status.created: frozenset({Status.running, Status.stopping, Status.expired, Status.failed}),
    Status.running: frozenset({Status.blocked, Status.stopping, Status.expired, Status.failed}),
    Status.blocked: frozenset({Status.running, Status.stopping, Status.expired, Status.failed}),
    Status.stopping: frozenset({Status.stopped, Status.expired, Status.failed}),
    Status.stopped: frozenset(),
    Status.expired: frozenset(),
    Status.failed: frozenset(),
}
STORED = tuple(status for status in Status if status is not Status.blocked)
LIVE = tuple(status for status in STORED if TRANSITIONS[status])
OPEN = (Status.created, Status.running)
"""New work is accepted."""
_SILENT = timedelta(seconds=15)
"""Three of a worker's heartbeats: one that has not said anything for longer is away."""


class WorkerState(StrEnum):
    """What there is of the worker that a session needs; none of it is asked of the worker."""

    live = "live"
    restoring = "restoring"
    away = "away"


_UNPRUNED = "pruned_at IS NULL AND ended_at IS NOT NULL"


class TrainingSession(Base):
    """`next_number` is claimed next, `last_number` is the highest accepted; 0 makes the adapter.

    After `pruned_at`, its operations have neither bodies nor results.
    """

    __tablename__ = "training_sessions"
    __table_args__ = (
        UniqueConstraint("account_id", "name"),
        Index(
            "ix_training_sessions_unpruned_ended_at",
            "ended_at",
            sqlite_where=text(_UNPRUNED),
            postgresql_where=text(_UNPRUNED),
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey(Account.id))
    name: Mapped[str]
    status: Mapped[str] = mapped_column(default=Status.created, index=True)
    base_model: Mapped[str]
    base_digest: Mapped[str]
    lora: Mapped[dict[str, Any]] = mapped_column(JSON)
    group_name: Mapped[str]
    parent_id: Mapped[str | None]
    parent_ref: Mapped[str | None]
    next_number: Mapped[int] = mapped_column(default=0)
    last_number: Mapped[int] = mapped_column(default=0)
    step: Mapped[int] = mapped_column(default=0)
    worker_id: Mapped[str | None]
    lease_epoch: Mapped[int] = mapped_column(default=0)
    live_epoch: Mapped[int] = mapped_column(default=0)
    error: Mapped[str | None]
    user_metadata: Mapped[dict[str, str]] = mapped_column(JSON, default=dict)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    last_active_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    pruned_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    @property
    def is_restoring(self) -> bool:
        """No worker holds it, or one is still making its completed operations again."""
        was_begun = self.next_number > 0 and self.status in (Status.running, Status.stopping)
        return was_begun and (self.worker_id is None or self.live_epoch != self.lease_epoch)

    @property
    def is_live(self) -> bool:
        return bool(TRANSITIONS[Status(self.status)])

    def move(self, status: Status, *, error: str | None = None) -> None:
        """Change the state, where the table allows it."""
        if status not in TRANSITIONS[Status(self.status)] or status not in STORED:
            raise TransitionRefused(self.name, status=self.status, wanted=status)
        self.status = status
        self.error = error or self.error
        if not TRANSITIONS[status]:
            self.ended_at = now()

    def shown(self, *, missing: int | None) -> Status:
        """Its state, where `missing` is the number that later operations wait for."""
        is_blocked = self.status == Status.running and missing is not None
        return Status.blocked if is_blocked else Status(self.status)

    def worker(self, beat_at: datetime | None, *, at: datetime) -> WorkerState | None:
        """By the last heartbeat of the worker that holds it. None once it has ended."""
        if not self.is_live:
            return None
        if beat_at is None or at - beat_at > _SILENT:
            return WorkerState.away
        return WorkerState.restoring if self.is_restoring else WorkerState.live

    def require_open(self) -> None:
        """Refuse new work for a session that is stopping or ended."""
        if self.status not in OPEN:
            raise SessionEnded(self.name, status=self.status, why=self.error)

    def require_live(self) -> None:
        if not self.is_live:
            raise SessionEnded(self.name, status=self.status, why=self.error)

    def require_ended(self) -> None:
        if self.is_live:
            raise SessionNotEnded(self.name, status=self.status)


class SessionMetric(Base):
    """One number of one step: measured by the worker, or logged by the client."""

    __tablename__ = "session_metrics"

    session_id: Mapped[str] = mapped_column(ForeignKey(TrainingSession.id), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[float]


class Worker(Base):
    """Where a worker's internal channel listens, with the secret that opens it."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(primary_key=True)
    address: Mapped[str]
    secret: Mapped[str]
    started_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    heartbeat_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
