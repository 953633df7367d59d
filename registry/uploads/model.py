"""An upload is a version on its way in: what it will hold is said first, then the bytes come."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from registry.artifacts.manifest import FileEntry
from registry.kit.clock import now
from registry.kit.db import Base, UtcDateTime
from registry.uploads.errors import CommitRunning, UploadFailed, UploadOver


class UploadState(StrEnum):
    """`open` takes bytes; the last four are final."""

    open = "open"
    committing = "committing"
    committed = "committed"
    failed = "failed"
    expired = "expired"
    aborted = "aborted"


OVER = (UploadState.failed, UploadState.expired, UploadState.aborted)
"""They came to nothing."""


class Upload(Base):
    """Its id becomes the version's own, so one upload makes one version. `claim` is whoever commits
    it, for as long as `claimed_at` is fresh."""

    __tablename__ = "uploads"
    __table_args__ = (
        UniqueConstraint("account_id", "group_name", "token"),
        Index("ix_uploads_account_id_group_name_id", "account_id", "group_name", "id"),
        Index("ix_uploads_state_expires_at", "state", "expires_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    group_name: Mapped[str]
    token: Mapped[str | None]
    """What makes the same push the same upload; an upload that came to nothing gives it back."""
    state: Mapped[str] = mapped_column(default=UploadState.open)
    kind: Mapped[str]
    prefix: Mapped[str]
    digest: Mapped[str]
    size: Mapped[int] = mapped_column(BigInteger)
    base_model: Mapped[str]
    parent_id: Mapped[str | None] = mapped_column(ForeignKey("packages.id"))
    description: Mapped[str]
    user_metadata: Mapped[dict[str, str]] = mapped_column(JSON)
    version: Mapped[int | None]
    error: Mapped[str | None]
    claim: Mapped[str | None]
    claimed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    is_cleared: Mapped[bool] = mapped_column(default=False)
    """Nothing of an upload that came to nothing lies in the store any more."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
    files: Mapped[list["UploadFile"]] = relationship(lazy="raise", order_by="UploadFile.path")

    @property
    def ref(self) -> str | None:
        """GROUP@VERSION, once it is made."""
        return None if self.version is None else f"{self.group_name}@{self.version}"

    def require_open(self) -> None:
        match self.state:
            case UploadState.open:
                return
            case UploadState.committing:
                raise CommitRunning(self.id)
            case UploadState.failed:
                raise UploadFailed(self.error or "it failed")
            case _:
                raise UploadOver(self.id, self.state, self.ref)


class UploadFile(Base):
    """`store_id` is the store's multipart upload, recorded before its first part is sent; a file of
    one part has none."""

    __tablename__ = "upload_files"

    upload_id: Mapped[str] = mapped_column(ForeignKey("uploads.id"), primary_key=True)
    path: Mapped[str] = mapped_column(primary_key=True)
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str]
    part_size: Mapped[int] = mapped_column(BigInteger)
    store_id: Mapped[str | None]

    @property
    def entry(self) -> FileEntry:
        return FileEntry(self.path, self.size, self.sha256)

    @property
    def part_count(self) -> int:
        return max(1, -(-self.size // self.part_size))

    @property
    def is_large(self) -> bool:
        return self.part_count > 1

    def size_of(self, number: int) -> int:
        """Of a part, numbered from 1."""
        return min(self.part_size, self.size - (number - 1) * self.part_size)


@dataclass(frozen=True, slots=True)
class UploadWish:
    """What a caller says of the version that is to come."""

    token: str
    kind: str
    files: Sequence[FileEntry]
    base_model: str
    parent: str | None = None
    description: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one upload, as the installation sets them."""

    part_bytes: int
    files: int
    bytes: int
    life_s: int
