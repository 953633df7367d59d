"""Which versions of a group stay by themselves, and which the keeper deletes.

A policy is up to four rules, and a version stays if any of them keeps it. What is held, what an
alias points at and what is in the stage production stays whatever the rules say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self

from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.kit.db import Database
from registry.packages import deletion, moves, service
from registry.packages.errors import (
    InvalidPolicy,
    PolicyNotFound,
    VersionDeleted,
    VersionHeld,
)
from registry.packages.keeper_repository import Candidate, RetentionRepository
from registry.packages.model import PackageGroup, Stage
from registry.packages.ref import PackageRef
from registry.packages.repository import PackageRepository

MOST_VERSIONS = 1_000_000
MOST_DAYS = 36_500
LONGEST_METRIC = 128
MOST_REMOVED = 1_000
"""In one go; the next goes on from there."""
MOST_TOLD = 10_000
_PAGE = 500


class Mode(StrEnum):
    """Which end of a metric is the better one."""

    smallest = "min"
    largest = "max"


@dataclass(frozen=True, slots=True)
class Best:
    metric: str
    mode: Mode
    n: int

    def __str__(self) -> str:
        return f"the {self.n} with the {Mode(self.mode).name} {self.metric}"


@dataclass(frozen=True, slots=True)
class Policy:
    """None is a rule that keeps nothing."""

    keep_last: int | None = None
    keep_every: int | None = None
    keep_best: Best | None = None
    max_age_days: int | None = None

    def __post_init__(self) -> None:
        """A policy without a rule would delete everything."""
        numbers = {
            "keep_last": self.keep_last,
            "keep_every": self.keep_every,
            "keep_best.n": self.keep_best.n if self.keep_best else None,
            "max_age_days": self.max_age_days,
        }
        given = {name: number for name, number in numbers.items() if number is not None}
        if not given:
            raise InvalidPolicy("retention", f"no rule; give one of {', '.join(numbers)}")
        for name, number in given.items():
            most = MOST_DAYS if name == "max_age_days" else MOST_VERSIONS
            if not 1 <= number <= most:
                raise InvalidPolicy(name, f"{number} is not between 1 and {most}")
        if self.keep_best and not _is_metric(self.keep_best.metric):
            raise InvalidPolicy(
                "keep_best.metric",
                f"not 1 to {LONGEST_METRIC} printable characters without quotes and backslashes",
            )

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        best = document["keep_best"]
        return cls(**{**document, "keep_best": Best(**best) if best else None})

    def document(self) -> dict[str, Any]:
        return asdict(self)


def _is_metric(name: str) -> bool:
    """Quotes and backslashes would have to be escaped in each database's own way."""
    return 1 <= len(name) <= LONGEST_METRIC and name.isprintable() and not set(name) & {'"', "\\"}


@dataclass(frozen=True, slots=True)
class Marks:
    """Where the rules draw their lines through a group, at one moment."""

    last_from: int
    best: frozenset[int]
    young_from: datetime


@dataclass(frozen=True, slots=True)
class Verdict:
    version: int
    size: int
    is_kept: bool
    reason: str


@dataclass(slots=True)
class Report:
    """`is_cut` where more versions are to go than one run removes, or there are more than it tells
    one by one; the sums are of all that it looked at."""

    group: str
    policy: Policy
    verdicts: list[Verdict] = field(default_factory=list)
    kept: int = 0
    kept_bytes: int = 0
    removed: int = 0
    removed_bytes: int = 0
    is_cut: bool = False
    warning: str | None = None

    def add(self, verdict: Verdict) -> None:
        if verdict.is_kept:
            self.kept += 1
            self.kept_bytes += verdict.size
        else:
            self.removed += 1
            self.removed_bytes += verdict.size
        if len(self.verdicts) < MOST_TOLD:
            self.verdicts.append(verdict)
        else:
            self.is_cut = True


def judge(policy: Policy, marks: Marks, candidate: Candidate) -> Verdict:
    """With every reason to keep it, or with every rule that does not."""
    number = candidate.version
    rules = (
        (policy.keep_last, number >= marks.last_from, f"the last {policy.keep_last}"),
        (
            policy.keep_every,
            number % (policy.keep_every or 1) == 0,
            f"every {policy.keep_every}th",
        ),
        (policy.keep_best, number in marks.best, str(policy.keep_best)),
        (
            policy.max_age_days,
            candidate.created_at > marks.young_from,
            f"younger than {policy.max_age_days} days",
        ),
    )
    claims = (
        (candidate.is_held, "held"),
        (candidate.is_aliased, "an alias points at it"),
        (candidate.stage == Stage.production, "in production"),
    )
    given = [(keeps, words) for rule, keeps, words in rules if rule is not None]
    kept_by = [words for keeps, words in (*claims, *given) if keeps]
    reason = ", ".join(kept_by) or f"not kept by: {', '.join(words for _, words in given)}"
    return Verdict(number, candidate.size, bool(kept_by), reason)


async def policy(db: AsyncSession, actor: Actor, group_name: str) -> Policy | None:
    group = await service.require_group(db, actor, group_name)
    return Policy.read(group.retention) if group.retention else None


async def require_policy(db: AsyncSession, actor: Actor, group_name: str) -> Policy:
    found = await policy(db, actor, group_name)
    if found is None:
        raise PolicyNotFound(group_name)
    return found


async def set_policy(
    db: AsyncSession, actor: Actor, group_name: str, policy: Policy | None
) -> None:
    """None keeps everything. It acts when the keeper next comes by, which is at once."""
    await service.require_group(db, actor, group_name)
    group = await PackageRepository(db, actor.account_id).group(group_name, lock=True)
    assert group is not None  # none is ever removed
    group.retention = policy.document() if policy else None
    group.retention_applied_at = None
    await db.flush()


async def apply(
    database: Database,
    actor: Actor,
    group_name: str,
    *,
    at: datetime,
    grace: timedelta,
    dry_run: bool,
    by: str | None = None,
    tried: Policy | None = None,
) -> Report:
    """Look at every version, newest first. Slow in a large group, and so in many transactions.
    `tried` is a policy to look with instead of the group's: it removes nothing."""
    async with database.read() as db:
        group = await service.require_group(db, actor, group_name)
        if tried is not None and not dry_run:
            raise InvalidPolicy("body", "a policy is tried with dry_run=true; else set it first")
        found = tried or await require_policy(db, actor, group_name)
        marks = await _marks(db, group, found, at=at)
    report = Report(group_name, found)
    if found.keep_best and not marks.best:
        report.warning = f"keep_best.metric: no version has {found.keep_best.metric!r}"
    before: int | None = None
    while True:
        async with database.read() as db:
            rows = await _rows(db, group).candidates(before=before, limit=_PAGE)
        for row in rows:
            verdict = judge(found, marks, row)
            if not verdict.is_kept and not dry_run:
                if report.removed >= MOST_REMOVED:
                    report.is_cut = True
                    return report
                ref = PackageRef(group_name, row.version)
                verdict = await _remove(database, actor, ref, verdict, grace=grace, by=by)
            report.add(verdict)
        if len(rows) < _PAGE:
            return report
        before = rows[-1].version


async def _remove(
    database: Database,
    actor: Actor,
    ref: PackageRef,
    verdict: Verdict,
    *,
    grace: timedelta,
    by: str | None,
) -> Verdict:
    """Decided anew about the row as it is now: it may be held, or in production, by now."""
    try:
        async with database.begin() as db:
            package = await moves.locked(db, actor, ref)
            if package.stage == Stage.production:
                return Verdict(verdict.version, verdict.size, True, "in production by now")
            why = f"retention: {verdict.reason}"
            await deletion.delete(db, actor, ref, grace=grace, why=why, by=by)
    except (VersionDeleted, VersionHeld) as error:
        return Verdict(verdict.version, verdict.size, True, error.message)
    return verdict


async def _marks(db: AsyncSession, group: PackageGroup, policy: Policy, *, at: datetime) -> Marks:
    rows, best = _rows(db, group), policy.keep_best
    found: Sequence[int] = ()
    if best is not None:
        is_largest = best.mode == Mode.largest
        found = await rows.best(best.metric, largest=is_largest, count=best.n)
    return Marks(
        last_from=await rows.last(policy.keep_last) if policy.keep_last else 0,
        best=frozenset(found),
        young_from=at - timedelta(days=policy.max_age_days or 0),
    )


def _rows(db: AsyncSession, group: PackageGroup) -> RetentionRepository:
    return RetentionRepository(db, group.account_id, group.id)
