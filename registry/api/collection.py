"""Garbage of an account: what lies in the object store and belongs to nothing."""

from datetime import timedelta
from typing import Self

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, StrictBool, StrictInt

from registry.api.auth import Admin
from registry.collection import service
from registry.collection.claims import Claims
from registry.collection.report import Damage, Heap, Report
from registry.kit.rest import Form

_DAY_S = 24 * 3600
_LONGEST_S = 3650 * _DAY_S


class Wish(Form):
    dry_run: StrictBool = Field(False, description="Only say what would be deleted.")
    older_than_s: StrictInt = Field(
        _DAY_S, ge=0, le=_LONGEST_S, description="What is younger stays in any case."
    )


class HeapView(BaseModel):
    kind: str = Field(
        description="`writes`: begun and never published; `versions`: of no version; `sessions`: "
        "of sessions that ended; `uploads`: parts that nobody puts together."
    )
    places: int
    objects: int
    bytes: int

    @classmethod
    def of(cls, kind: str, heap: Heap) -> Self:
        return cls(kind=kind, places=heap.places, objects=heap.objects, bytes=heap.bytes)


class DamageView(BaseModel):
    ref: str
    path: str
    problem: str

    @classmethod
    def of(cls, damage: Damage) -> Self:
        return cls(ref=damage.ref, path=damage.path, problem=damage.problem)


class Collected(BaseModel):
    dry_run: bool
    bytes_freed: int
    garbage: list[HeapView]
    foreign: HeapView = Field(description="Not of Modelyard's making, and left alone.")
    damaged: list[DamageView] = Field(
        description="Files of listed versions that are missing or cut. Nothing is done about them."
    )

    @classmethod
    def of(cls, report: Report) -> Self:
        return cls(
            dry_run=report.is_dry_run,
            bytes_freed=report.bytes_freed,
            garbage=[HeapView.of(kind, heap) for kind, heap in sorted(report.garbage.items())],
            foreign=HeapView.of("foreign", report.foreign),
            damaged=[DamageView.of(damage) for damage in report.damaged],
        )


def routes(claims: Claims) -> APIRouter:
    """`claims` say what is needed of what the registry knows nothing of."""
    router = APIRouter(prefix="/v1", tags=["garbage"])

    @router.post("/gc")
    async def collect_garbage(request: Request, actor: Admin, wish: Wish) -> Collected:
        """Compares the account's objects with its versions, both ways, and deletes what belongs to
        nothing. What is being written is safe."""
        state = request.app.state
        report = await service.collect(
            state.database,
            state.store,
            claims,
            older_than=timedelta(seconds=wish.older_than_s),
            account_id=actor.account_id,
            dry_run=wish.dry_run,
        )
        return Collected.of(report)

    return router
