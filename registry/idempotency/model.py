"""A key that a caller gave a request, and what became of the request."""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import JSON, ForeignKey, LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from registry.kit.clock import now
from registry.kit.db import Base, UtcDateTime


class KeyStatus(StrEnum):
    """`done` is committed together with what the request did. Its answer is kept after that, so
    `done` stays where the process died in between."""

    running = "running"
    done = "done"
    answered = "answered"


class IdempotencyKey(Base):
    """`attempt` is drawn anew by whoever takes the key up, so that one who lost it is found out."""

    __tablename__ = "idempotency_keys"

    token_id: Mapped[str] = mapped_column(ForeignKey("api_tokens.id"), primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    fingerprint: Mapped[str]
    attempt: Mapped[str]
    status: Mapped[str] = mapped_column(default=KeyStatus.running)
    taken_until: Mapped[datetime] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now, index=True)
    answer_status: Mapped[int | None]
    answer_headers: Mapped[list[list[str]] | None] = mapped_column(JSON(none_as_null=True))
    answer_body: Mapped[bytes | None] = mapped_column(LargeBinary)
