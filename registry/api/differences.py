"""Two versions side by side, and how far their weights moved, line by line as it is computed."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, Field

from exporters.weight_change import Change
from registry.access.actor import Actor
from registry.api.auth import Viewer
from registry.api.packages import Place
from registry.api.schemas import File
from registry.kit.db import Database
from registry.kit.errors import Kind, ServiceError
from registry.kit.rest import log_whole
from registry.packages import differences, service
from registry.packages.differences import FieldChange, FileChanges, Moved, Side, Tensors, Total
from registry.packages.ref import Ref, parse_ref, ref_in

router = APIRouter(prefix="/v1/groups/{group}/versions/{version}", tags=["groups and versions"])
LINES = "application/x-ndjson"

Against = Annotated[
    str,
    Query(
        max_length=200,
        description="A number or an alias of this group, GROUP@VERSION or GROUP:ALIAS.",
    ),
]


class Changed(BaseModel):
    field: str = Field(examples=["lora.rank"])
    before: Any = Field(examples=[8])
    after: Any = Field(examples=[16])

    @classmethod
    def of(cls, change: FieldChange) -> Self:
        return cls.model_validate(change, from_attributes=True)


class MetricChange(BaseModel):
    name: str = Field(examples=["loss"])
    before: float | None
    after: float | None
    difference: float | None

    @classmethod
    def of(cls, change: FieldChange) -> Self:
        known = None not in (change.before, change.after)
        moved = change.after - change.before if known else None
        return cls(name=change.field, before=change.before, after=change.after, difference=moved)


class ChangedFile(BaseModel):
    before: File
    after: File


class FilesChanged(BaseModel):
    added: list[File]
    removed: list[File]
    changed: list[ChangedFile]
    same: int

    @classmethod
    def of(cls, found: FileChanges) -> Self:
        return cls(
            added=[File.of(file) for file in found.added],
            removed=[File.of(file) for file in found.removed],
            changed=[
                ChangedFile(before=File.of(one), after=File.of(other))
                for one, other in found.changed
            ],
            same=found.same,
        )


class Difference(BaseModel):
    """`before` is what it is compared against; `after` is the version itself."""

    version: str
    against: str
    configuration: list[Changed] = Field(description="What is not the same.")
    metrics: list[MetricChange]
    usage: list[Changed]
    files: FilesChanged

    @classmethod
    def of(cls, before: Side, after: Side) -> Self:
        old, new = before.package, after.package
        used = differences.numbers(old.usage, new.usage)
        return cls(
            version=new.ref,
            against=old.ref,
            configuration=[Changed.of(each) for each in differences.configuration(old, new)],
            metrics=[
                MetricChange.of(each)
                for each in differences.numbers(old.latest_metrics, new.latest_metrics)
            ],
            usage=[Changed.of(each) for each in used],
            files=FilesChanged.of(differences.files(before.files, after.files)),
        )


class Norms(BaseModel):
    """Frobenius norms. Null where there is none: a side is missing, or the shapes differ."""

    before: float | None
    after: float | None
    difference: float | None
    relative: float | None = Field(description="The difference, divided by `before`.")

    @classmethod
    def of(cls, change: Change) -> Self:
        return cls.model_validate(change, from_attributes=True)


class TensorLine(Norms):
    line: Literal["tensor"] = "tensor"
    name: str = Field(description="Of an adapter, the module: norms are those of its update.")
    shape: list[int]
    factors: dict[str, Norms] = Field(description="`a` and `b` of an adapter's module.")

    @classmethod
    def of_moved(cls, moved: Moved) -> Self:
        norms = Norms.of(moved.change).model_dump()
        factors = {name: Norms.of(change) for name, change in moved.factors.items()}
        return cls(name=moved.name, shape=list(moved.shape), factors=factors, **norms)


class TotalLine(BaseModel):
    """The last line: without it, the answer was cut."""

    line: Literal["total"] = "total"
    tensors: int
    compared: int
    difference: float

    @classmethod
    def of(cls, total: Total) -> Self:
        return cls.model_validate(total, from_attributes=True)


class ProblemLine(BaseModel):
    """The last line where the rest could not be read."""

    line: Literal["problem"] = "problem"
    kind: Kind
    detail: str


_LINES: Mapping[int | str, dict[str, Any]] = {
    200: {
        "description": "With `tensors`, one line a tensor, and a last one of the total.",
        "content": {LINES: {"schema": {"type": "string"}}},
    }
}


@router.get("/diff", response_model=Difference, responses=dict(_LINES))
async def compare(
    request: Request,
    actor: Viewer,
    group: str,
    version: Place,
    against: Against,
    tensors: Annotated[bool, Query(description="How far each tensor moved, as lines.")] = False,
) -> Difference | Response:
    """What is different from `against`. With `tensors`, the weights are read instead."""
    refs = (_against(group, against), ref_in(group, version))
    before, after = await _sides(request.app.state.database, actor, refs, live=tensors)
    if not tensors:
        return Difference.of(before, after)
    opened = await Tensors.open(request.app.state.store, before, after)
    return StreamingResponse(_lines(opened), media_type=LINES)


def _against(group: str, text: str) -> Ref:
    return parse_ref(text) if {"@", ":"} & set(text) else ref_in(group, text)


async def _sides(
    database: Database, actor: Actor, refs: Sequence[Ref], *, live: bool
) -> list[Side]:
    """A deleted version still says what it was; its files may be gone."""
    require = service.require_live if live else service.require_version
    async with database.read() as db:
        found = [await require(db, actor, ref) for ref in refs]
        return [Side(package, await service.files(db, package)) for package in found]


async def _lines(tensors: Tensors) -> AsyncIterator[str]:
    total = Total()
    try:
        async for moved in tensors.moved():
            total.add(moved)
            yield TensorLine.of_moved(moved).model_dump_json() + "\n"
    except ServiceError as error:
        await log_whole(error, kind="tensors")
        yield ProblemLine(kind=error.kind, detail=error.message).model_dump_json() + "\n"
        return
    yield TotalLine.of(total).model_dump_json() + "\n"
