"""What the service tells about its models, sessions, versions and deployments.

Fields that a newer service adds are ignored.
"""

from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True):
    data: list[T]
    next_cursor: str | None = None


class BaseModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    digest: str
    architecture: str = ""
    context_length: int | None = None
    vocab_size: int | None = None


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`last_number` is the number of the last operation that the service has stored.

    While it is `restoring`, a worker makes its completed operations again; `worker` is `live`,
    `restoring` or `away`. A `blocked` session waits for `missing_number`. It expires at
    `expires_at` if nothing is asked of it until then.
    """

    id: str
    status: str
    base_model: str
    name: str | None = None
    group: str | None = None
    lora: dict[str, Any] = {}
    parent: str | None = None
    step: int = 0
    restoring: bool = False
    worker: str | None = None
    error: str | None = None
    last_number: int = 0
    missing_number: int | None = None
    created_at: datetime | None = None
    last_active_at: datetime | None = None
    expires_at: datetime | None = None
    ended_at: datetime | None = None
    metadata: dict[str, Any] = {}


class StepMetrics(msgspec.Struct, frozen=True):
    step: int
    metrics: dict[str, float | None]


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str = ""
    last_version: int = 0
    require_approval: bool = False
    revision: int = 1
    created_at: datetime | None = None


class VersionInfo(msgspec.Struct, frozen=True, kw_only=True):
    ref: str
    group: str
    version: int
    kind: str
    base_model: str
    base_digest: str = ""
    resumable: bool = False
    promotable: bool = False
    digest: str = ""
    size: int = 0
    lora: dict[str, Any] = {}
    parent: str | None = None
    session: str | None = None
    step: int | None = None
    metrics: dict[str, Any] = {}
    description: str = ""
    metadata: dict[str, Any] = {}
    usage: dict[str, int] = {}
    approval: str = "pending"
    stage: str = "none"
    tags: list[str] = []
    aliases: list[str] = []
    expires_at: datetime | None = None
    revision: int = 1
    created_at: datetime | None = None
    deleted_at: datetime | None = None
    deleted_by: str | None = None
    deleted_why: str | None = None
    purge_at: datetime | None = None
    purged_at: datetime | None = None
    freed: int | None = None


class PartInfo(msgspec.Struct, frozen=True):
    """`url` takes a PUT of its bytes: a path of the service, or an address of the object store."""

    number: int
    size: int
    url: str | None = None
    expires_at: datetime | None = None


class FileProgress(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    part_size: int
    missing: list[PartInfo] = []


class UploadInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`version` is there once it is committed."""

    id: str
    state: str
    version: str | None = None
    files: list[FileProgress] = []


class StoredFile(msgspec.Struct, frozen=True):
    path: str
    size: int
    sha256: str


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """A number that was logged after the save of its version."""

    name: str
    step: int
    value: float
    at: datetime | None = None


class AliasInfo(msgspec.Struct, frozen=True, kw_only=True):
    alias: str
    version: int
    ref: str
    digest: str = ""
    protected: bool = False
    revision: int = 0
    updated_at: datetime | None = None


class HoldInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps a version from being deleted: an alias, session, deployment, merge or person."""

    kind: str
    holder: str
    name: str = ""
    why: str = ""
    created_at: datetime | None = None


class LineageNode(msgspec.Struct, frozen=True, kw_only=True):
    ref: str
    kind: str
    parent: str | None = None
    session: str | None = None
    step: int = 0
    base_model: str = ""
    base_digest: str = ""
    digest: str = ""
    created_at: datetime | None = None
    deleted_at: datetime | None = None
    purged_at: datetime | None = None


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """Oldest ancestor first, youngest descendant last."""

    root: str
    nodes: list[LineageNode]
    cut: bool = False


class FileFinding(msgspec.Struct, frozen=True, kw_only=True):
    """`problem` is None for a file that is as it was registered."""

    path: str
    size: int = 0
    problem: str | None = None


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    ref: str
    intact: bool
    digest: str = ""
    files: list[FileFinding] = []


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a group's history; `before` and `after` are its `from` and `to`."""

    kind: str
    alias: str | None = None
    version: int | None = None
    digest: str | None = None
    before: str | None = msgspec.field(default=None, name="from")
    after: str | None = msgspec.field(default=None, name="to")
    role: str = ""
    token: str | None = None
    why: str = ""
    at: datetime | None = None


class FieldChange(msgspec.Struct, frozen=True, kw_only=True):
    """None where a version does not have it."""

    field: str
    before: Any = None
    after: Any = None


class MetricChange(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    before: float | None = None
    after: float | None = None
    difference: float | None = None


class ChangedFile(msgspec.Struct, frozen=True, kw_only=True):
    before: StoredFile
    after: StoredFile


class FilesChanged(msgspec.Struct, frozen=True, kw_only=True):
    added: list[StoredFile] = []
    removed: list[StoredFile] = []
    changed: list[ChangedFile] = []
    same: int = 0


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """`before` is that of `against`, `after` that of `version`."""

    version: str
    against: str
    configuration: list[FieldChange] = []
    metrics: list[MetricChange] = []
    usage: list[FieldChange] = []
    files: FilesChanged = FilesChanged()


class Norms(msgspec.Struct, frozen=True, kw_only=True):
    """Frobenius norms; None where there is nothing to compare. `relative` is to `before`."""

    before: float | None = None
    after: float | None = None
    difference: float | None = None
    relative: float | None = None


class TensorChange(Norms, frozen=True, kw_only=True, tag_field="line", tag="tensor"):
    """A tensor; or a module of an adapter, with its `factors` `a` and `b`."""

    name: str
    shape: list[int] = []
    factors: dict[str, Norms] = {}


class WeightTotal(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="total"):
    tensors: int
    compared: int
    difference: float


class WeightProblem(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="problem"):
    kind: str
    detail: str


class WeightChange(msgspec.Struct, frozen=True, kw_only=True):
    """`difference` is over all tensors that could be compared, as one long vector."""

    tensors: list[TensorChange]
    compared: int
    difference: float


class MergeInfo(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    status: str
    source: str
    version: str | None = None
    error: str | None = None


class PendingVersion(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    status: str
    error: str | None = None


class DeploymentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`version` is what traffic gets now, `approval` what people say of that now."""

    name: str
    status: str
    version: str | None = None
    approval: str | None = None
    previous: str | None = None
    pending: PendingVersion | None = None
    revision: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None


class SessionUsage(msgspec.Struct, frozen=True, kw_only=True):
    session: str | None
    tokens: dict[str, int]


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens by category: train, prefill, cached_prefill, sample."""

    tokens: dict[str, int]
    session: str | None = None
    sessions: list[SessionUsage] = []


class TokenizerFiles(msgspec.Struct, frozen=True):
    files: list[str]
