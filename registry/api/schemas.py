"""What REST answers. The shapes are ours; the names are the words of the domain."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from fastapi import Query
from pydantic import AfterValidator, BaseModel, Field

from registry.artifacts.manifest import FileEntry
from registry.kit.pages import Page
from registry.kit.rest import Form
from registry.models.model import BaseModel as StoredModel
from registry.packages.model import Package, PackageGroup
from registry.usage.model import Category
from registry.usage.service import Bucket, Group, GroupBy

T = TypeVar("T")
Row = TypeVar("Row")

Limit = Annotated[int, Query(ge=1, le=200, description="The most rows of one page.")]
Cursor = Annotated[
    str | None, Query(max_length=2000, description="The `next_cursor` of the page before.")
]
Moment = Annotated[datetime, AfterValidator(lambda moment: moment.astimezone(UTC))]


class List(BaseModel, Generic[T]):
    """A short list, whole."""

    data: list[T]


class Listing(BaseModel, Generic[T]):
    """A page. `next_cursor` is null on the last one."""

    data: list[T]
    next_cursor: str | None

    @classmethod
    def of(cls, page: Page[Row], form: Callable[[Row], T]) -> Self:
        return cls(data=[form(row) for row in page.items], next_cursor=page.next_cursor)


class Model(BaseModel):
    id: str
    name: str
    digest: str
    architecture: str
    context_length: int
    vocab_size: int
    created_at: Moment

    @classmethod
    def of(cls, model: StoredModel) -> Self:
        return cls.model_validate(model, from_attributes=True)


class TokenizerFiles(BaseModel):
    files: list[str]


class NewGroup(Form):
    name: str
    description: str = ""


class GroupView(BaseModel):
    id: str
    name: str
    description: str
    last_version: int = Field(description="The newest number that was given; 0 before the first.")
    require_approval: bool = Field(description="Whether only an approved version is promoted.")
    revision: int = Field(description="Counts changes of its settings; also the ETag.")
    created_at: Moment
    deleted_at: Moment | None

    @classmethod
    def of(cls, group: PackageGroup) -> Self:
        return cls.model_validate(group, from_attributes=True)


class Version(BaseModel):
    id: str
    group: str
    version: int
    ref: str = Field(description="GROUP@VERSION")
    kind: str
    resumable: bool
    promotable: bool
    digest: str = Field(description="Of the manifest, and so of every file.")
    size: int
    base_model: str
    base_digest: str
    lora: dict[str, Any]
    parent: str | None = Field(description="GROUP@VERSION it was made from.")
    session: str | None
    operation: int | None
    step: int
    metrics: dict[str, float] = Field(
        description="Of the save, and the last of each name that was logged since."
    )
    description: str
    metadata: dict[str, str]
    usage: dict[str, int]
    approval: str
    stage: str
    tags: list[str]
    aliases: list[str] = Field(description="Those that point at it now.")
    expires_at: Moment | None
    revision: int = Field(description="Counts what was said of it since; also the ETag.")
    created_at: Moment
    deleted_at: Moment | None = Field(description="Set on a tombstone, which no list holds.")
    deleted_by: str | None = Field(description="The id of a token, or `keeper`.")
    deleted_why: str | None
    purge_at: Moment | None = Field(description="Until then it can be restored.")
    purged_at: Moment | None = Field(description="Since then its files are gone.")
    freed: int | None = Field(description="The bytes that its purge frees.")

    @classmethod
    def of(cls, package: Package) -> Self:
        return cls(
            id=package.id,
            group=package.group.name,
            version=package.version,
            ref=package.ref,
            kind=package.kind,
            resumable=package.is_resumable,
            promotable=package.is_promotable,
            digest=package.digest,
            size=package.size,
            base_model=package.base_model,
            base_digest=package.base_digest,
            lora=package.lora,
            parent=package.parent.ref if package.parent else None,
            session=package.session_id,
            operation=package.operation_number,
            step=package.step,
            metrics=package.latest_metrics,
            description=package.description,
            metadata=package.user_metadata,
            usage=package.usage,
            approval=package.approval,
            stage=package.stage,
            tags=package.tag_names,
            aliases=package.alias_names,
            expires_at=package.expires_at,
            revision=package.revision,
            created_at=package.created_at,
            deleted_at=package.deleted_at,
            deleted_by=package.deleted_by,
            deleted_why=package.deleted_why,
            purge_at=package.purge_at,
            purged_at=package.purged_at,
            freed=package.freed,
        )


class File(BaseModel):
    path: str
    size: int
    sha256: str

    @classmethod
    def of(cls, entry: FileEntry) -> Self:
        return cls.model_validate(entry, from_attributes=True)


class UsageResult(BaseModel):
    """Named as in OpenAI's organization usage; `train_tokens` is ours."""

    object: Literal["usage.result"] = "usage.result"
    input_tokens: int = Field(description="Prefill, what a cache served included.")
    input_cached_tokens: int
    output_tokens: int
    train_tokens: int
    num_model_requests: int
    session: str | None = None
    model: str | None = None

    @classmethod
    def of(cls, group: Group, group_by: GroupBy | None) -> Self:
        tokens = group.tokens
        return cls(
            input_tokens=tokens[Category.prefill] + tokens[Category.cached_prefill],
            input_cached_tokens=tokens[Category.cached_prefill],
            output_tokens=tokens[Category.sample],
            train_tokens=tokens[Category.train],
            num_model_requests=group.requests,
            session=group.key if group_by == GroupBy.session else None,
            model=group.key if group_by == GroupBy.model else None,
        )


class UsageBucket(BaseModel):
    object: Literal["bucket"] = "bucket"
    start_time: int = Field(description="Seconds since 1970, as OpenAI gives them.")
    end_time: int
    results: list[UsageResult]


class UsagePage(BaseModel):
    object: Literal["page"] = "page"
    data: list[UsageBucket]
    has_more: bool
    next_page: str | None = Field(description="The `cursor` of the page after this one.")

    @classmethod
    def of(cls, page: Page[Bucket], group_by: GroupBy | None) -> Self:
        return cls(
            data=[_bucket(bucket, group_by) for bucket in page.items],
            has_more=page.next_cursor is not None,
            next_page=page.next_cursor,
        )


class SessionTokens(BaseModel):
    session: str
    tokens: dict[Category, int]


class UsageTotals(BaseModel):
    object: Literal["usage.totals"] = "usage.totals"
    session: str | None
    tokens: dict[Category, int]
    sessions: list[SessionTokens]


def _bucket(bucket: Bucket, group_by: GroupBy | None) -> UsageBucket:
    return UsageBucket(
        start_time=int(bucket.start.timestamp()),
        end_time=int(bucket.end.timestamp()),
        results=[UsageResult.of(group, group_by) for group in bucket.groups],
    )
