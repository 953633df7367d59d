"""Retention policies: which versions of a group stay by themselves."""

from typing import Annotated, Literal, Self

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field, StrictInt

from registry.api.auth import Admin, Member, Viewer
from registry.api.deletion import Grace
from registry.kit.clock import now
from registry.kit.db import Database
from registry.kit.rest import Db, Form, ReadDb
from registry.packages import retention
from registry.packages.ref import PackageRef

router = APIRouter(prefix="/v1/groups/{group}/retention", tags=["deletion and retention"])

DryRun = Annotated[bool, Query(description="Only tell what would be deleted, and why.")]


class BestForm(Form):
    metric: str
    mode: retention.Mode = Field(description="Whether the smallest or the largest are kept.")
    n: StrictInt = 1


class PolicyForm(Form):
    """A version stays if any rule keeps it. At least one is needed."""

    keep_last: StrictInt | None = Field(None, description="The newest so many.")
    keep_every: StrictInt | None = Field(None, description="Those whose number it divides.")
    keep_best: BestForm | None = Field(None, description="Of equals, the newer.")
    max_age_days: StrictInt | None = Field(None, description="Those that are younger.")

    def policy(self) -> retention.Policy:
        best = self.keep_best
        return retention.Policy(
            keep_last=self.keep_last,
            keep_every=self.keep_every,
            keep_best=retention.Best(best.metric, best.mode, best.n) if best else None,
            max_age_days=self.max_age_days,
        )


class PolicyView(BaseModel):
    keep_last: int | None
    keep_every: int | None
    keep_best: BestForm | None
    max_age_days: int | None

    @classmethod
    def of(cls, policy: retention.Policy) -> Self:
        return cls.model_validate(policy.document())


class Counted(BaseModel):
    versions: int
    bytes: int


class VerdictView(BaseModel):
    ref: str
    version: int
    size: int
    action: Literal["keep", "remove"]
    reason: str = Field(description="Everything that keeps it, or every rule that does not.")


class Application(BaseModel):
    group: str
    dry_run: bool
    policy: PolicyView
    kept: Counted
    removed: Counted
    warning: str | None = Field(description="What is likely a mistake in the policy.")
    cut: bool = Field(description="One run removes 1,000 versions and tells of 10,000: go on.")
    versions: list[VerdictView] = Field(description="Newest first.")

    @classmethod
    def of(cls, report: retention.Report, *, dry_run: bool) -> Self:
        return cls(
            group=report.group,
            dry_run=dry_run,
            policy=PolicyView.of(report.policy),
            kept=Counted(versions=report.kept, bytes=report.kept_bytes),
            removed=Counted(versions=report.removed, bytes=report.removed_bytes),
            warning=report.warning,
            cut=report.is_cut,
            versions=[
                VerdictView(
                    ref=str(PackageRef(report.group, verdict.version)),
                    version=verdict.version,
                    size=verdict.size,
                    action="keep" if verdict.is_kept else "remove",
                    reason=verdict.reason,
                )
                for verdict in report.verdicts
            ],
        )


@router.get("")
async def show_policy(actor: Viewer, db: ReadDb, group: str) -> PolicyView:
    return PolicyView.of(await retention.require_policy(db, actor, group))


@router.put("")
async def set_policy(actor: Admin, db: Db, group: str, form: PolicyForm) -> PolicyView:
    """From now on the keeper deletes what no rule keeps, with the same grace as anybody."""
    policy = form.policy()
    await retention.set_policy(db, actor, group, policy)
    return PolicyView.of(policy)


@router.delete("", status_code=204)
async def clear_policy(actor: Admin, db: Db, group: str) -> None:
    await retention.set_policy(db, actor, group, None)


@router.post("/apply")
async def apply_policy(
    request: Request,
    actor: Member,
    grace: Grace,
    group: str,
    form: PolicyForm | None = None,
    dry_run: DryRun = False,
) -> Application:
    """Now, not when the keeper comes by. What is held or aliased stays whatever the rules say. A
    dry run takes a policy to try, which is not set."""
    database: Database = request.app.state.database
    tried = form.policy() if form else None
    report = await retention.apply(
        database, actor, group, at=now(), grace=grace, dry_run=dry_run, tried=tried
    )
    return Application.of(report, dry_run=dry_run)
