"""A group is a name; a package is one numbered, immutable version of weights under it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Connection,
    ForeignKey,
    Index,
    UniqueConstraint,
    event,
    false,
    text,
)
from sqlalchemy.orm import Mapped, Mapper, mapped_column, query_expression, relationship
from sqlalchemy.orm.attributes import instance_state

from registry.artifacts.manifest import FileEntry
from registry.kit.clock import now
from registry.kit.db import Base, UtcDateTime
from registry.packages.errors import (
    AliasMoved,
    ApprovalMissing,
    GroupMoved,
    HistoryIsAppendOnly,
    NoAdapter,
    NotPromotable,
    NotResumable,
    PackageIsImmutable,
    VersionDeleted,
    VersionMoved,
    VersionNotDeleted,
    VersionRejected,
)

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


class Stage(StrEnum):
    none = "none"
    staging = "staging"
    production = "production"
    archived = "archived"


class EventKind(StrEnum):
    alias = "alias"
    approval = "approval"
    stage = "stage"
    hold = "hold"
    deleted = "deleted"
    restored = "restored"
    purged = "purged"
    require_approval = "require_approval"


class HolderKind(StrEnum):
    """Who keeps a version from being deleted. An alias does so by pointing at it."""

    session = "session"
    deployment = "deployment"
    merge = "merge"
    person = "person"


NAME_SEPARATOR = "\n"
"""Neither a tag nor an alias may hold it."""


def _separated(names: str) -> list[str]:
    return sorted(names.split(NAME_SEPARATOR)) if names else []


def _partial(name: str, *columns: str, where: str) -> Index:
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))


def _live(*columns: str) -> Index:
    """Tombstones may come to be most of a group; no list has to step over them."""
    name = "_".join(("ix_packages_live", *columns))
    return _partial(name, *columns, where="deleted_at IS NULL")


class PackageGroup(Base):
    """A deleted one is no longer listed, and takes no version until it is made again. It keeps its
    counter, so that no number is ever given twice. `revision` counts changes of its settings.

    `last_version_at` never goes back, whatever the clocks of the servers say: of two versions, the
    one with the higher number is not the older one, so a span of time is a span of numbers.
    """

    __tablename__ = "package_groups"
    __table_args__ = (UniqueConstraint("account_id", "name"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    name: Mapped[str]
    description: Mapped[str] = mapped_column(default="")
    last_version: Mapped[int] = mapped_column(default=0)
    last_version_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    deleted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    retention: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    retention_applied_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    require_approval: Mapped[bool] = mapped_column(default=False, server_default=false())
    revision: Mapped[int] = mapped_column(default=1, server_default="1")

    def require_revision(self, expected: int) -> None:
        if self.revision != expected:
            raise GroupMoved(self.name, expected=expected, found=self.revision)


class Package(Base):
    """What was trained never changes. What people say of it may; `revision` counts that.

    A deleted one is a tombstone: its files stay until `purge_at`, then they go and the row stays.
    `purging_at` is when somebody last began to remove them, `freed` how many bytes that frees.
    """

    __tablename__ = "packages"
    __table_args__ = (
        UniqueConstraint("group_id", "version"),
        # One for each filter that leaves few of many, in the order of the list.
        _live("group_id", "version"),
        _live("group_id", "kind", "version"),
        _live("group_id", "stage", "version"),
        _live("group_id", "approval", "version"),
        _live("group_id", "session_id", "version"),
        Index("ix_packages_group_id_created_at_version", "group_id", "created_at", "version"),
        _partial(
            "ix_packages_deleted_group_id_version",
            *("group_id", "version"),
            where="deleted_at IS NOT NULL",
        ),
        _partial("ix_packages_purge_at", "purge_at", where="purge_at IS NOT NULL"),
        _partial("ix_packages_expires_at", "expires_at", where="deleted_at IS NULL"),
    )

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
    logged_metrics: Mapped[dict[str, float] | None] = mapped_column(JSON(none_as_null=True))
    """The last of each name in `PackageMetric`, so that a list needs no second query."""
    description: Mapped[str]
    user_metadata: Mapped[dict[str, str]] = mapped_column(JSON)
    usage: Mapped[dict[str, int]] = mapped_column(JSON)
    approval: Mapped[str] = mapped_column(default=Approval.pending)
    stage: Mapped[str] = mapped_column(default=Stage.none, server_default=Stage.none.value)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revision: Mapped[int] = mapped_column(default=1, server_default="1")
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    deleted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    deleted_by: Mapped[str | None]
    deleted_why: Mapped[str | None]
    purge_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    purging_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    purged_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    freed: Mapped[int | None] = mapped_column(BigInteger)
    group: Mapped[PackageGroup] = relationship(lazy="raise")
    parent: Mapped["Package | None"] = relationship(remote_side="Package.id", lazy="raise")
    tags: Mapped[list["PackageTag"]] = relationship(
        lazy="raise", cascade="all, delete-orphan", order_by="PackageTag.tag"
    )
    aliases: Mapped[list["PackageAlias"]] = relationship(
        lazy="raise", viewonly=True, order_by="PackageAlias.name"
    )

    tags_joined: Mapped[str | None] = query_expression()
    aliases_joined: Mapped[str | None] = query_expression()
    """Both as `NAME_SEPARATOR` joins them, where a query asked for the names alone."""

    @property
    def ref(self) -> str:
        return f"{self.group.name}@{self.version}"

    @property
    def tag_names(self) -> list[str]:
        if self.tags_joined is None or "tags" in instance_state(self).dict:
            return [tag.tag for tag in self.tags]
        return _separated(self.tags_joined)

    @property
    def alias_names(self) -> list[str]:
        """Of those that point at it now."""
        if self.aliases_joined is None or "aliases" in instance_state(self).dict:
            return [alias.name for alias in self.aliases]
        return _separated(self.aliases_joined)

    @property
    def latest_metrics(self) -> dict[str, float]:
        """What was logged later replaces what the save said."""
        return {**self.metrics, **(self.logged_metrics or {})}

    @property
    def is_resumable(self) -> bool:
        return STATE in PackageKind(self.kind).parts

    @property
    def is_promotable(self) -> bool:
        return MERGED in PackageKind(self.kind).parts

    @property
    def has_adapter(self) -> bool:
        """Full weights from outside may have none."""
        return bool(self.lora)

    def require_adapter(self) -> None:
        if not self.has_adapter:
            raise NoAdapter(self.ref)

    def require_revision(self, expected: int) -> None:
        """Refuse a change that was thought out on an older state than this one."""
        if self.revision != expected:
            raise VersionMoved(self.ref, expected=expected, found=self.revision)

    def require_live(self) -> None:
        """Refuse what needs its files, which may go at any moment, or are gone."""
        if self.deleted_at is not None:
            raise VersionDeleted(
                self.ref, at=self.deleted_at, purge_at=self.purge_at, purged_at=self.purged_at
            )

    def require_tombstone(self) -> None:
        """Refuse what is about a deleted version whose files may still be there."""
        if self.deleted_at is None:
            raise VersionNotDeleted(self.ref)
        if self.purged_at is not None:
            self.require_live()

    def retag(self, tags: Sequence[str]) -> None:
        wanted = set(tags)
        kept = [tag for tag in self.tags if tag.tag in wanted]
        added = sorted(wanted - {tag.tag for tag in kept})
        of = {"package_id": self.id, "group_id": self.group_id, "version": self.version}
        self.tags = [*kept, *(PackageTag(tag=tag, **of) for tag in added)]

    def require_resumable(self) -> None:
        if not self.is_resumable:
            raise NotResumable(self.ref, kind=self.kind, missing=STATE)

    def require_approval(self) -> None:
        """What is promoted is never rejected, and is approved where its group asks for that."""
        if self.approval == Approval.rejected:
            raise VersionRejected(self.ref)
        if self.group.require_approval and self.approval != Approval.approved:
            raise ApprovalMissing(self.ref)

    def require_promotable(self) -> None:
        if not self.is_promotable:
            raise NotPromotable(self.ref, kind=self.kind, missing=MERGED)


class PackageFile(Base):
    __tablename__ = "package_files"

    package_id: Mapped[str] = mapped_column(ForeignKey("packages.id"), primary_key=True)
    path: Mapped[str] = mapped_column(primary_key=True)
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str]


class PackageMetric(Base):
    """One number that was measured after the save. Rows are added and never changed."""

    __tablename__ = "package_metrics"
    __table_args__ = (Index("ix_package_metrics_package_id_name_id", "package_id", "name", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    package_id: Mapped[str] = mapped_column(ForeignKey("packages.id"))
    name: Mapped[str]
    step: Mapped[int] = mapped_column(BigInteger)
    value: Mapped[float]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)


class PackageTag(Base):
    """It repeats what of its version never changes, so that an index finds a tag's versions in the
    order of the list."""

    __tablename__ = "package_tags"
    __table_args__ = (Index("ix_package_tags_group_id_tag_version", "group_id", "tag", "version"),)

    package_id: Mapped[str] = mapped_column(ForeignKey("packages.id"), primary_key=True)
    tag: Mapped[str] = mapped_column(primary_key=True)
    group_id: Mapped[str]
    version: Mapped[int]


class PackageAlias(Base):
    """A name in a group that points at one version. Once removed it points at nothing, and its
    revision goes on counting, so that no old revision is ever right again."""

    __tablename__ = "package_aliases"
    __table_args__ = (UniqueConstraint("group_id", "name"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    group_id: Mapped[str] = mapped_column(ForeignKey("package_groups.id"))
    name: Mapped[str]
    package_id: Mapped[str | None] = mapped_column(ForeignKey("packages.id"), index=True)
    revision: Mapped[int] = mapped_column(default=0)
    is_protected: Mapped[bool] = mapped_column(default=False)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now, onupdate=now)
    group: Mapped[PackageGroup] = relationship(lazy="raise")
    package: Mapped[Package | None] = relationship(lazy="raise")

    @property
    def ref(self) -> str:
        return f"{self.group.name}:{self.name}"

    def require_revision(self, expected: int | None) -> None:
        """None expects an alias that points at nothing."""
        if expected is None and self.package is None:
            return
        if self.package is None or self.revision != expected:
            at = f"at {self.package.ref}" if self.package else "removed"
            raise AliasMoved(self.ref, now=f"{at}, revision {self.revision}")

    def point(self, package: Package | None) -> None:
        self.package = package
        self.revision += 1


class PackageHold(Base):
    """A claim on a version: while there is one, it cannot be deleted."""

    __tablename__ = "package_holds"
    __table_args__ = (Index("ix_package_holds_holder_kind_holder_id", "holder_kind", "holder_id"),)

    package_id: Mapped[str] = mapped_column(ForeignKey("packages.id"), primary_key=True)
    holder_kind: Mapped[str] = mapped_column(primary_key=True)
    holder_id: Mapped[str] = mapped_column(primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    holder_name: Mapped[str]
    why: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)

    def __str__(self) -> str:
        is_person = self.holder_kind == HolderKind.person
        holder = self.holder_name if is_person else f"{self.holder_kind} {self.holder_name}"
        return f"{holder} ({self.why})" if self.why else holder


class PackageEvent(Base):
    """One move: who, when, from what, to what, why, and the digest of the version it is about.

    A move of the group's own settings is about no version. Rows are added and never changed.
    """

    __tablename__ = "package_events"
    __table_args__ = (Index("ix_package_events_group_id_alias_id", "group_id", "alias", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    group_id: Mapped[str] = mapped_column(ForeignKey("package_groups.id"))
    kind: Mapped[str]
    alias: Mapped[str | None]
    version: Mapped[int | None]
    digest: Mapped[str | None]
    source: Mapped[str | None]
    target: Mapped[str | None]
    role: Mapped[str]
    token: Mapped[str | None]
    why: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)


class PackageWrite(Base):
    """Files of a version that is not there yet: where they lie, and for what they are written.

    The row is there before the first byte, and goes in the transaction that publishes the version.
    Once it is collected nobody publishes them any more, and they may be deleted.
    """

    __tablename__ = "package_writes"

    id: Mapped[str] = mapped_column(primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"), index=True)
    holder: Mapped[str] = mapped_column(index=True)
    prefix: Mapped[str]
    paths: Mapped[list[str]] = mapped_column(JSON)
    started_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    touched_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    collected_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    @property
    def keys(self) -> list[str]:
        return [self.prefix + path for path in self.paths]


_SAID = {
    *("approval", "stage", "description", "expires_at", "tags", "revision"),
    "logged_metrics",
}
_DELETION = {"deleted_at", "deleted_by", "deleted_why"}
_PURGE = {"purge_at", "purging_at", "purged_at", "freed"}
MUTABLE = _SAID | _DELETION | _PURGE


@event.listens_for(Package, "before_update")
@event.listens_for(PackageFile, "before_update")
def _refuse_changes(_: Mapper[Any], __: Connection, row: Package | PackageFile) -> None:
    """What was published stays; only what people say of it may move."""
    changed = {name.key for name in instance_state(row).attrs if name.history.has_changes()}
    if forbidden := sorted(changed - MUTABLE):
        raise PackageIsImmutable(forbidden)


@event.listens_for(PackageMetric, "before_update")
@event.listens_for(PackageEvent, "before_update")
@event.listens_for(PackageEvent, "before_delete")
def _refuse_rewriting(_: Mapper[Any], __: Connection, row: PackageEvent | PackageMetric) -> None:
    raise HistoryIsAppendOnly


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
