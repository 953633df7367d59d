"""An account is a tenant; a token is a secret that speaks for it, kept only as a hash."""

import hashlib
from datetime import datetime

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column, relationship

from registry.access.actor import Actor, Role
from registry.access.errors import TokenExpired, TokenRevoked
from registry.kit.clock import now
from registry.kit.db import Base, UtcDateTime


class Account(Base):
    __tablename__ = "accounts"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)


class ApiToken(Base):
    __tablename__ = "api_tokens"

    id: Mapped[str] = mapped_column(primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"), index=True)
    name: Mapped[str]
    role: Mapped[str]
    secret_hash: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    account: Mapped[Account] = relationship(lazy="raise")

    def actor(self, *, at: datetime) -> Actor:
        """For whom this token speaks at that moment, if it still does."""
        if self.revoked_at is not None:
            raise TokenRevoked
        if self.expires_at is not None and self.expires_at <= at:
            raise TokenExpired
        return Actor(self.account_id, Role(self.role), self.id)


def hash_secret(secret: str) -> str:
    """Plain SHA-256 is enough: a secret is random and long, there is nothing to guess."""
    return hashlib.sha256(secret.encode()).hexdigest()
