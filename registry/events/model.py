"""An event is a fact, written in the transaction that made it so; a webhook is where to tell it."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from registry.kit.clock import now
from registry.kit.db import Base, UtcDateTime

ATTEMPTS = 10
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5, 8 * 60 * 60
SECRETS_OVERLAP = timedelta(hours=24)
"""How long a secret that was replaced still signs beside the new one."""


class EventType(StrEnum):
    version_registered = "version.registered"
    version_deleted = "version.deleted"
    version_restored = "version.restored"
    version_purged = "version.purged"
    version_approval = "version.approval"
    version_stage = "version.stage"
    alias_moved = "alias.moved"
    alias_removed = "alias.removed"
    deployment_activated = "deployment.activated"
    deployment_failed = "deployment.failed"
    deployment_rolled_back = "deployment.rolled_back"
    webhook_test = "webhook.test"


class DeliveryStatus(StrEnum):
    """`dead` is what no attempt could deliver, or what a gone receiver refused."""

    pending = "pending"
    delivered = "delivered"
    dead = "dead"


class Event(Base):
    """`number` counts an account's events from 1. The courier gives it once the event is committed,
    so that no event ever appears before one that a reader has seen."""

    __tablename__ = "events"
    __table_args__ = (UniqueConstraint("account_id", "number"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    number: Mapped[int | None]
    type: Mapped[str]
    data: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)


# The few that wait for their number are found without a look at all the others.
Index(
    "ix_events_unpublished",
    Event.created_at,
    postgresql_where=Event.number.is_(None),
    sqlite_where=Event.number.is_(None),
)
Index("ix_events_created_at", Event.created_at)


class EventCounter(Base):
    """The last number that an account's events were given; its row lock puts publishers in line."""

    __tablename__ = "event_counters"

    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"), primary_key=True)
    last_number: Mapped[int] = mapped_column(default=0)


class Webhook(Base):
    """No types means all of them. The secret is kept as it is, because it has to sign."""

    __tablename__ = "webhooks"

    id: Mapped[str] = mapped_column(primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"), index=True)
    url: Mapped[str]
    types: Mapped[list[str]] = mapped_column(JSON)
    description: Mapped[str] = mapped_column(default="")
    secret: Mapped[str]
    old_secret: Mapped[str | None]
    old_secret_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    is_enabled: Mapped[bool] = mapped_column(default=True)
    why_disabled: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now, onupdate=now)

    def wants(self, event: Event) -> bool:
        """A test goes to the one webhook that is tested, and so is wanted by none."""
        if event.type == EventType.webhook_test:
            return False
        return not self.types or event.type in self.types

    def rotate(self, secret: str, *, at: datetime) -> None:
        self.old_secret, self.old_secret_until = self.secret, at + SECRETS_OVERLAP
        self.secret = secret

    def secrets(self, *, at: datetime) -> list[str]:
        """Those that sign at that moment, the newest first."""
        old = self.old_secret if self.old_secret_until and at < self.old_secret_until else None
        return [self.secret, old] if old else [self.secret]

    def enable(self, enabled: bool, *, why: str | None = None) -> None:
        self.is_enabled = enabled
        self.why_disabled = None if enabled else why


class Delivery(Base):
    """One event on its way to one webhook. Whoever attempts it first counts the attempt and moves
    `next_at` beyond it: so nobody else takes it meanwhile, and it comes back if they die."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        UniqueConstraint("webhook_id", "event_id"),
        Index("ix_webhook_deliveries_status_next_at", "status", "next_at", "webhook_id"),
        Index("ix_webhook_deliveries_webhook_id_status_id", "webhook_id", "status", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id"))
    event_id: Mapped[str] = mapped_column(ForeignKey("events.id"), index=True)
    status: Mapped[str] = mapped_column(default=DeliveryStatus.pending)
    attempts: Mapped[int] = mapped_column(default=0)
    next_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    last_status: Mapped[int | None]
    last_error: Mapped[str | None]
    delivered_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    event: Mapped[Event] = relationship(lazy="raise")
    webhook: Mapped[Webhook] = relationship(lazy="raise")

    def attempt(self, *, until: datetime) -> None:
        self.attempts += 1
        self.next_at = until

    def succeed(self, status: int, *, at: datetime) -> None:
        self.status, self.delivered_at = DeliveryStatus.delivered, at
        self.last_status, self.last_error = status, None

    def fail(
        self, status: int | None, error: str, *, at: datetime, luck: float, final: bool = False
    ) -> None:
        """`luck` between 0 and 1 spreads the retries of many. The last attempt leaves it dead."""
        self.last_status, self.last_error = status, error
        if final or self.attempts >= ATTEMPTS:
            self.status = DeliveryStatus.dead
        else:
            self.next_at = at + timedelta(seconds=pause_s(self.attempts, luck=luck))

    def again(self, *, at: datetime) -> None:
        self.status, self.attempts, self.next_at = DeliveryStatus.pending, 0, at


def pause_s(attempts: int, *, luck: float) -> float:
    """Four times as long after each attempt, 8 hours at most, a fifth more or less: about a day."""
    exact = min(_FIRST_PAUSE_S * 4.0 ** (attempts - 1), _LONGEST_PAUSE_S)
    return exact * (0.8 + 0.4 * luck)
