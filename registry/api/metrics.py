"""Numbers of a version that came after its save."""

from typing import Annotated, Self

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt

from registry.api.auth import Member, Viewer
from registry.api.packages import Number, Place
from registry.api.schemas import Cursor, Limit, List, Listing, Moment
from registry.kit.rest import Db, Form, ReadDb
from registry.packages import metrics
from registry.packages.limits import LONGEST_KEY
from registry.packages.model import PackageMetric
from registry.packages.ref import PackageRef, ref_in

router = APIRouter(
    prefix="/v1/groups/{group}/versions/{version}/metrics", tags=["groups and versions"]
)

MetricName = Annotated[
    str | None, Query(min_length=1, max_length=LONGEST_KEY, pattern=r"^[^\x00]*$")
]


class Numbers(Form):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"metrics": {"eval_accuracy": 0.91}, "step": 10}]}
    )

    metrics: dict[str, StrictFloat] = Field(min_length=1, description="Finite numbers by name.")
    step: StrictInt | None = Field(None, description="The version's own where it is absent.")


class MetricView(BaseModel):
    name: str
    step: int
    value: float
    created_at: Moment = Field(serialization_alias="at")

    @classmethod
    def of(cls, row: PackageMetric) -> Self:
        return cls.model_validate(row, from_attributes=True)


@router.get("")
async def list_metrics(
    actor: Viewer,
    db: ReadDb,
    group: str,
    version: Place,
    name: MetricName = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Listing[MetricView]:
    """In the order in which they were logged; those of the save itself are the version's own."""
    ref = ref_in(group, version)
    page = await metrics.logged(db, actor, ref, name=name, limit=limit, cursor=cursor)
    return Listing.of(page, MetricView.of)


@router.post("", status_code=201)
async def log_metrics(
    actor: Member, db: Db, group: str, version: Number, numbers: Numbers
) -> List[MetricView]:
    """The last of a name is what the version's `metrics` say from then on."""
    ref = PackageRef(group, version)
    rows = await metrics.log(db, actor, ref, numbers=numbers.metrics, step=numbers.step)
    return List(data=[MetricView.of(row) for row in rows])
