"""One metered fact a row. Rows are added and never changed."""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import BigInteger, ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from registry.kit.clock import now
from registry.kit.db import Base, UtcDateTime


class Category(StrEnum):
    train = "train"
    prefill = "prefill"
    cached_prefill = "cached_prefill"
    sample = "sample"


class UsageEvent(Base):
    __tablename__ = "usage_events"
    __table_args__ = (
        UniqueConstraint("account_id", "operation_id", "category"),
        Index("ix_usage_events_account_id_created_at", "account_id", "created_at"),
        Index("ix_usage_events_account_id_session_id", "account_id", "session_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    operation_id: Mapped[str]
    category: Mapped[str]
    tokens: Mapped[int] = mapped_column(BigInteger)
    session_id: Mapped[str | None]
    model: Mapped[str]
    deployment: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
