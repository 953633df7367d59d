"""A merge is long work, so it is a row: asked for here, done by a worker."""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from registry.access.model import Account
from registry.kit.clock import now
from registry.kit.db import Base, UtcDateTime
from registry.packages.model import Package


class MergeStatus(StrEnum):
    pending = "pending"
    running = "running"
    completed = "completed"
    failed = "failed"

    @property
    def is_final(self) -> bool:
        return self in (self.completed, self.failed)


class Merge(Base):
    __tablename__ = "merges"

    id: Mapped[str] = mapped_column(primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey(Account.id))
    group_name: Mapped[str]
    source_id: Mapped[str] = mapped_column(ForeignKey(Package.id))
    source_ref: Mapped[str]
    status: Mapped[str] = mapped_column(default=MergeStatus.pending, index=True)
    worker_id: Mapped[str | None]
    version_ref: Mapped[str | None]
    error: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    completed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    @property
    def is_final(self) -> bool:
        return MergeStatus(self.status).is_final
