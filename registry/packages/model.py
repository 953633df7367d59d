"""A package group is a name; a package is one numbered, immutable version of weights under it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, BigInteger, Connection, ForeignKey, UniqueConstraint, event
from sqlalchemy.orm import Mapped, Mapper, mapped_column, relationship
from sqlalchemy.orm.attributes import instance_state

from registry.artifacts.manifest import FileEntry
from registry.kit.clock import now
from registry.kit.db import Base, UtcDateTime
from registry.packages.errors import NotPromotable, NotResumable, PackageIsImmutable

ADAPTER = "checkpoints/hf/"
MERGED = "checkpoints/hf_merged/"
STATE = "state/"


class PackageKind(StrEnum):
    state = "state"
    adapter = "adapter"
    merged = "merged"

    @property
    def parts(self) -> tuple[str, ...]:
        """The folders that a version of this kind has."""
        return _PARTS[self]


_PARTS: Mapping[PackageKind, tuple[str, ...]] = {
    PackageKind.state: (ADAPTER, STATE),
    PackageKind.adapter: (ADAPTER,),
    PackageKind.merged: (ADAPTER, MERGED),
}


class Approval(StrEnum):
    pending = "pending"
    approved = "approved"
    rejected = "rejected"


class PackageGroup(Base):
    __tablename__ = "package_groups"
    __table_args__ = (UniqueConstraint("account_id", "name"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    name: Mapped[str]
    description: Mapped[str] = mapped_column(default="")
    last_version: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)


class Package(Base):
    __tablename__ = "packages"
    __table_args__ = (UniqueConstraint("group_id", "version"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"), index=True)
    group_id: Mapped[str] = mapped_column(ForeignKey("package_groups.id"))
    version: Mapped[int]
    kind: Mapped[str]
    prefix: Mapped[str]
    digest: Mapped[str]
    size: Mapped[int] = mapped_column(BigInteger)
    base_model: Mapped[str]
    base_digest: Mapped[str]
    lora: Mapped[dict[str, Any]] = mapped_column(JSON)
    parent_id: Mapped[str | None] = mapped_column(ForeignKey("packages.id"), index=True)
    session_id: Mapped[str | None]
    operation_number: Mapped[int | None]
    step: Mapped[int]
    metrics: Mapped[dict[str, float]] = mapped_column(JSON)
    description: Mapped[str]
    user_metadata: Mapped[dict[str, str]] = mapped_column(JSON)
    usage: Mapped[dict[str, int]] = mapped_column(JSON)
    approval: Mapped[str] = mapped_column(default=Approval.pending)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    group: Mapped[PackageGroup] = relationship(lazy="raise")
    parent: Mapped["Package | None"] = relationship(remote_side="Package.id", lazy="raise")

    @property
    def ref(self) -> str:
        return f"{self.group.name}@{self.version}"

    @property
    def is_resumable(self) -> bool:
        return STATE in PackageKind(self.kind).parts

    @property
    def is_promotable(self) -> bool:
        return MERGED in PackageKind(self.kind).parts

    def require_resumable(self) -> None:
        if not self.is_resumable:
            raise NotResumable(self.ref, kind=self.kind, missing=STATE)

    def require_promotable(self) -> None:
        if not self.is_promotable:
            raise NotPromotable(self.ref, kind=self.kind, missing=MERGED)


class PackageFile(Base):
    __tablename__ = "package_files"

    package_id: Mapped[str] = mapped_column(ForeignKey("packages.id"), primary_key=True)
    path: Mapped[str] = mapped_column(primary_key=True)
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str]


@event.listens_for(Package, "before_update")
@event.listens_for(PackageFile, "before_update")
def _refuse_changes(_: Mapper[Any], __: Connection, row: Package | PackageFile) -> None:
    """What was published stays; only the decision about it may move."""
    changed = {name.key for name in instance_state(row).attrs if name.history.has_changes()}
    if forbidden := sorted(changed - {"approval"}):
        raise PackageIsImmutable(forbidden)


@dataclass(frozen=True, slots=True)
class PackageDraft:
    """A version before it has a number. Its files lie under `prefix` already."""

    id: str
    kind: PackageKind
    prefix: str
    files: Sequence[FileEntry]
    base_model: str
    base_digest: str
    lora: Mapping[str, Any]
    parent_id: str | None = None
    session_id: str | None = None
    operation_number: int | None = None
    step: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    description: str = ""
    user_metadata: Mapping[str, str] = field(default_factory=dict)
    usage: Mapping[str, int] = field(default_factory=dict)
