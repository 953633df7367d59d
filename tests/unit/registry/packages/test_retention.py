"""What a policy keeps: each row computed by hand from the table of versions below."""

import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from registry.access.actor import Actor
from registry.kit.clock import now
from registry.kit.db import Database
from registry.packages import deletion, holds, metrics, moves, retention, service
from registry.packages.errors import InvalidPolicy, PolicyNotFound
from registry.packages.model import HolderKind, Package, Stage
from registry.packages.ref import PackageRef
from registry.packages.repository import Wanted
from registry.packages.retention import Best, Mode, Policy, Report
from support.packages import a_version, an_actor

GRACE = timedelta(days=7)
AT = now()
LOSSES = {1: 0.9, 2: 0.5, 3: 0.7, 4: 0.5, 6: 0.1, 8: 0.9}
"""Of versions 1 to 8; 5 and 7 have none. Version n is 10 * (8 - n) days old."""


async def a_group(database: Database, losses: Mapping[int, float] = LOSSES) -> Actor:
    """Versions 1 to 8 of `demo`, in an account of its own."""
    async with database.begin() as db:
        actor = await an_actor(db, f"a-{uuid.uuid4().hex}")
        for number in range(1, 9):
            metrics = {"loss": losses[number]} if number in losses else {}
            package = await a_version(db, actor, metrics=metrics)
            made = {"created_at": AT - timedelta(days=10 * (8 - number))}
            await db.execute(update(Package).where(Package.id == package.id).values(made))
    return actor


async def apply(
    database: Database, actor: Actor, policy: Policy | None, *, dry_run: bool = False
) -> Report:
    if policy is not None:
        async with database.begin() as db:
            await retention.set_policy(db, actor, "demo", policy)
    return await retention.apply(database, actor, "demo", at=AT, grace=GRACE, dry_run=dry_run)


def kept(report: Report) -> list[int]:
    return [each.version for each in report.verdicts if each.is_kept]


async def listed(database: Database, actor: Actor, *, deleted: bool = False) -> list[int]:
    async with database.read() as db:
        page = await service.versions(db, actor, "demo", wanted=Wanted(deleted=deleted))
    return [package.version for package in page.items]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Policy(keep_last=1), [8]),
        (Policy(keep_last=3), [8, 7, 6]),
        (Policy(keep_last=8), [8, 7, 6, 5, 4, 3, 2, 1]),
        (Policy(keep_last=100), [8, 7, 6, 5, 4, 3, 2, 1]),
        (Policy(keep_every=1), [8, 7, 6, 5, 4, 3, 2, 1]),
        (Policy(keep_every=3), [6, 3]),
        (Policy(keep_every=9), []),
        (Policy(keep_best=Best("loss", Mode.smallest, 1)), [6]),
        (Policy(keep_best=Best("loss", Mode.smallest, 2)), [6, 4]),  # of two 0.5 the newer
        (Policy(keep_best=Best("loss", Mode.smallest, 3)), [6, 4, 2]),
        (Policy(keep_best=Best("loss", Mode.largest, 1)), [8]),  # of two 0.9 the newer
        (Policy(keep_best=Best("loss", Mode.largest, 99)), [8, 6, 4, 3, 2, 1]),
        (Policy(keep_best=Best("accuracy", Mode.largest, 2)), []),
        (Policy(max_age_days=10), [8]),  # 7 is ten days old, which is not younger
        (Policy(max_age_days=11), [8, 7]),
        (Policy(keep_last=1, keep_every=4), [8, 4]),
        (
            Policy(2, 5, Best("loss", Mode.smallest, 1), 25),
            [8, 7, 6, 5],  # last: 8 7; every: 5; best: 6; younger: 8 7 6
        ),
    ],
)
async def test_a_version_stays_if_any_rule_keeps_it(
    database: Database, policy: Policy, expected: list[int]
) -> None:
    actor = await a_group(database)
    planned = await apply(database, actor, policy, dry_run=True)
    assert kept(planned) == expected
    assert await listed(database, actor) == [8, 7, 6, 5, 4, 3, 2, 1]
    done = await apply(database, actor, None)
    assert done == planned
    assert await listed(database, actor) == expected
    assert len(await listed(database, actor, deleted=True)) == 8 - len(expected)


async def test_a_report_counts_versions_and_bytes_and_says_why(database: Database) -> None:
    actor = await a_group(database)
    report = await apply(database, actor, Policy(keep_last=2, max_age_days=15), dry_run=True)
    assert (report.kept, report.kept_bytes) == (2, 4)
    assert (report.removed, report.removed_bytes, report.is_cut) == (6, 12, False)
    assert [each.reason for each in report.verdicts[:3]] == [
        *["the last 2, younger than 15 days"] * 2,
        "not kept by: the last 2, younger than 15 days",
    ]


async def test_what_is_held_aliased_or_in_production_stays(database: Database) -> None:
    actor = await a_group(database)
    async with database.begin() as db:
        package = await service.require_version(db, actor, PackageRef("demo", 1))
        await holds.place(db, actor, package, holder_kind=HolderKind.session, holder_id="ses_1")
        await moves.point(db, actor, "demo", "prod", version=2, expected=None)
        staged: moves.Changes = {"stage": Stage.production}
        await moves.edit(db, actor, PackageRef("demo", 3), staged, expected=1, why="")
    report = await apply(database, actor, Policy(keep_last=1))
    assert kept(report) == [8, 3, 2, 1]
    reasons = [each.reason for each in report.verdicts if each.is_kept]
    assert reasons == ["the last 1", "in production", "an alias points at it", "held"]
    assert await listed(database, actor) == [8, 3, 2, 1]


async def test_the_best_are_so_by_what_was_logged_last(database: Database) -> None:
    actor = await a_group(database)
    async with database.begin() as db:
        for number, loss in ((5, 0.05), (6, 0.8), (3, 0.2)):
            await metrics.log(db, actor, PackageRef("demo", number), numbers={"loss": loss})
    best = Best("loss", Mode.smallest, 2)
    assert kept(await apply(database, actor, Policy(keep_best=best))) == [5, 3]


async def test_tombstones_take_no_part(database: Database) -> None:
    actor = await a_group(database)
    async with database.begin() as db:
        for number in (8, 6):
            await deletion.delete(db, actor, PackageRef("demo", number), grace=GRACE)
    best = Best("loss", Mode.smallest, 1)
    report = await apply(database, actor, Policy(keep_last=2, keep_best=best))
    assert kept(report) == [7, 5, 4]
    assert report.kept + report.removed == 6


async def test_a_group_without_a_policy_keeps_everything(database: Database) -> None:
    actor = await a_group(database)
    with pytest.raises(PolicyNotFound, match="'demo' has no retention policy"):
        await apply(database, actor, None)
    await apply(database, actor, Policy(keep_last=8))
    async with database.begin() as db:
        await retention.set_policy(db, actor, "demo", None)
    with pytest.raises(PolicyNotFound):
        await apply(database, actor, None)


@pytest.mark.parametrize(
    ("rules", "field"),
    [
        ({}, "retention"),
        ({"keep_last": 0}, "keep_last"),
        ({"keep_every": -1}, "keep_every"),
        ({"max_age_days": 10**6}, "max_age_days"),
        ({"keep_best": Best("loss", Mode.smallest, 0)}, r"keep_best\.n"),
        ({"keep_best": Best("", Mode.smallest, 1)}, r"keep_best\.metric"),
        ({"keep_best": Best('a"b', Mode.smallest, 1)}, r"keep_best\.metric"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(rules: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidPolicy, match=f"^{field}: "):
        Policy(**rules)


_counts = st.one_of(st.none(), st.integers(1, 9))
_bests = st.one_of(
    st.none(), st.builds(Best, st.just("loss"), st.sampled_from(Mode), st.integers(1, 9))
)
_rules = st.tuples(_counts, _counts, _bests, st.one_of(st.none(), st.integers(1, 90)))


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    rules=_rules.filter(any),
    losses=st.dictionaries(st.integers(1, 8), st.floats(-1, 1)),
    held=st.sets(st.integers(1, 8)),
    aliased=st.sets(st.integers(1, 8)),
)
async def test_nothing_held_or_aliased_ever_goes_and_a_second_time_changes_nothing(
    database: Database,
    rules: tuple[Any, ...],
    losses: dict[int, float],
    held: set[int],
    aliased: set[int],
) -> None:
    actor = await a_group(database, losses)
    async with database.begin() as db:
        for number in held:
            package = await service.require_version(db, actor, PackageRef("demo", number))
            await holds.place(db, actor, package, holder_kind=HolderKind.person, holder_id="tok_1")
        for number in aliased:
            await moves.point(db, actor, "demo", f"a{number}", version=number, expected=None)
    planned = await apply(database, actor, Policy(*rules), dry_run=True)
    assert await apply(database, actor, None) == planned
    left = await listed(database, actor)
    assert left == kept(planned)
    assert held | aliased <= set(left)
    again = await apply(database, actor, None)
    assert (again.removed, kept(again)) == (0, left)
