"""A training session is one live adapter on one base model; a worker holds its lease."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from registry.access.model import Account
from registry.kit.clock import now
from registry.kit.db import Base, UtcDateTime
from session.lifecycle.errors import SessionEnded


class Status(StrEnum):
    created = "created"
    running = "running"
    stopping = "stopping"
    stopped = "stopped"
    failed = "failed"


TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    Status.created: frozenset({Status.running, Status.stopping, Status.failed}),
    Status.running: frozenset({Status.stopping, Status.failed}),
    Status.stopping: frozenset({Status.stopped, Status.failed}),
    Status.stopped: frozenset(),
    Status.failed: frozenset(),
}
LIVE = tuple(status for status, following in TRANSITIONS.items() if following)
OPEN = (Status.created, Status.running)
"""New work is accepted."""


class TrainingSession(Base):
    """`next_number` is claimed next, `last_number` is the highest accepted; 0 makes the adapter."""

    __tablename__ = "training_sessions"
    __table_args__ = (UniqueConstraint("account_id", "name"),)

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
        if status not in TRANSITIONS[Status(self.status)]:
            raise SessionEnded(self.name, status=self.status)
        self.status = status
        self.error = error or self.error
        if not TRANSITIONS[status]:
            self.ended_at = now()

    def require_open(self) -> None:
        """Refuse new work for a session that is stopping or ended."""
        if self.status not in OPEN:
            raise SessionEnded(self.name, status=self.status, why=self.error)


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
