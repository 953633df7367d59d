"""Our REST's bodies for sessions, metrics and merges."""

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt

from registry.kit.rest import Form
from session.endings.lifetimes import Lifetimes
from session.lifecycle.service import LoraWish, SessionWish
from session.merges.model import Merge
from session.operations.standing import Standing

Text = Annotated[str, Field(max_length=1024)]
Metadata = Annotated[dict[Annotated[str, Field(max_length=128)], Text], Field(max_length=50)]


class LoraIn(Form):
    rank: StrictInt = 32
    alpha: float | None = Field(None, description="32 where absent; scaling is alpha / rank")
    seed: StrictInt | None = Field(None, description="drawn by the service where absent")
    targets: list[str] | None = Field(None, description="module suffixes; beats the three flags")
    train_attn: StrictBool = True
    train_mlp: StrictBool = True
    train_unembed: StrictBool = True


class SessionIn(Form):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"base_model": "smollm2-135m-instruct", "group": "facts", "lora": {"rank": 16}}
            ]
        }
    )

    base_model: str | None = Field(None, description="may be absent with from_version")
    name: str | None = None
    group: str | None = Field(None, description="made if it does not exist; 'default' if absent")
    lora: LoraIn = LoraIn()
    from_version: str | None = Field(
        None, description="GROUP@VERSION or GROUP:ALIAS to take weights from"
    )
    with_optimizer: StrictBool = Field(False, description="needs a version of kind state")
    metadata: Metadata = Field(default_factory=dict)

    def wish(self) -> SessionWish:
        lora = self.lora.model_dump()
        targets = lora.pop("targets")
        return SessionWish(
            base_model=self.base_model,
            name=self.name,
            group=self.group,
            lora=LoraWish(**lora, targets=None if targets is None else tuple(targets)),
            from_version=self.from_version,
            with_optimizer=self.with_optimizer,
            metadata=self.metadata,
        )


class LoraOut(BaseModel):
    rank: int
    alpha: float
    targets: list[str]
    seed: int


class SessionOut(BaseModel):
    id: str
    name: str
    status: str
    base_model: str
    group: str
    lora: LoraOut
    parent: str | None
    step: int
    restoring: bool = Field(description="a worker is making its completed operations again")
    worker: str | None = Field(
        description="what there is of the worker it needs: live, restoring or away; null at its end"
    )
    error: str | None
    last_number: int
    missing_number: int | None = Field(description="of a blocked session: what the others wait for")
    created_at: datetime
    last_active_at: datetime
    expires_at: datetime | None = Field(description="if nothing is asked of it until then")
    ended_at: datetime | None
    metadata: dict[str, str]

    @classmethod
    def of(cls, standing: Standing, lifetimes: Lifetimes) -> "SessionOut":
        session = standing.session
        return cls(
            id=session.id,
            name=session.name,
            status=standing.status,
            base_model=session.base_model,
            group=session.group_name,
            lora=LoraOut(**session.lora),
            parent=session.parent_ref,
            step=session.step,
            restoring=session.is_restoring,
            worker=standing.worker,
            error=session.error,
            last_number=session.last_number,
            missing_number=standing.missing,
            created_at=session.created_at,
            last_active_at=session.last_active_at,
            expires_at=lifetimes.expiry(session),
            ended_at=session.ended_at,
            metadata=session.user_metadata,
        )


class SessionPage(BaseModel):
    data: list[SessionOut]
    next_cursor: str | None


class StepMetrics(Form):
    step: StrictInt
    metrics: dict[str, float]


class MetricsOut(BaseModel):
    data: list[StepMetrics]


class MergeOut(BaseModel):
    id: str
    status: str
    source: str
    version: str | None
    error: str | None
    created_at: datetime
    completed_at: datetime | None

    @classmethod
    def of(cls, merge: Merge) -> "MergeOut":
        return cls(
            id=merge.id,
            status=merge.status,
            source=merge.source_ref,
            version=merge.version_ref,
            error=merge.error,
            created_at=merge.created_at,
            completed_at=merge.completed_at,
        )
