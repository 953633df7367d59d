"""Rows of sampling: a request that is answered once, and sampler weights without a number."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, ForeignKey, LargeBinary, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from registry.access.model import Account
from registry.kit.clock import now
from registry.kit.db import Base, UtcDateTime
from session.lifecycle.model import TrainingSession


class SamplingStatus(StrEnum):
    running = "running"
    completed = "completed"
    failed = "failed"


class SamplingRequest(Base):
    """The same client token is the same request: its answer is kept and given again."""

    __tablename__ = "sampling_requests"
    __table_args__ = (UniqueConstraint("account_id", "client_token"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey(Account.id))
    client_token: Mapped[str]
    body_hash: Mapped[str]
    status: Mapped[str] = mapped_column(default=SamplingStatus.running)
    session_id: Mapped[str | None]
    model: Mapped[str]
    result: Mapped[bytes | None] = mapped_column(LargeBinary)
    error: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    completed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class SamplerWeights(Base):
    """An adapter stored for a session's sampling clients. It lives as long as its session."""

    __tablename__ = "sampler_weights"

    id: Mapped[str] = mapped_column(primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey(Account.id))
    session_id: Mapped[str] = mapped_column(ForeignKey(TrainingSession.id), index=True)
    prefix: Mapped[str]
    files: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    step: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
