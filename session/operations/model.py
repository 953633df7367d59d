"""An operation is one row of a session's log. The row is the truth; live state is its cache."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, ForeignKey, LargeBinary, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from registry.kit.clock import now
from registry.kit.db import Base, UtcDateTime
from session.lifecycle.model import TrainingSession


class OperationStatus(StrEnum):
    pending = "pending"
    running = "running"
    completed = "completed"
    failed = "failed"
    skipped = "skipped"

    @property
    def is_final(self) -> bool:
        return self in (self.completed, self.failed, self.skipped)


class Operation(Base):
    """`body` is the wire form as it came; above 64 KiB it lies in the object store at `body_key`.

    Client token and body hash stay for good, so that a late retry is recognised.
    """

    __tablename__ = "operations"
    __table_args__ = (UniqueConstraint("session_id", "number"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    session_id: Mapped[str] = mapped_column(ForeignKey(TrainingSession.id))
    number: Mapped[int]
    kind: Mapped[str]
    status: Mapped[str] = mapped_column(default=OperationStatus.pending)
    client_token: Mapped[str]
    body_hash: Mapped[str]
    body: Mapped[bytes | None] = mapped_column(LargeBinary)
    body_key: Mapped[str | None]
    result: Mapped[bytes | None] = mapped_column(LargeBinary)
    error: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    completed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    @property
    def is_final(self) -> bool:
        return OperationStatus(self.status).is_final

    @property
    def is_pruned(self) -> bool:
        """It completed, and what it came to is not kept any more."""
        return self.status == OperationStatus.completed and self.result is None

    def is_retry(self, *, token: str, body_hash: str) -> bool:
        """The same call again: the same client token, or the same body."""
        return token == self.client_token or body_hash == self.body_hash
