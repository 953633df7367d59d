"""Numbers that are measured after a version was saved: added by name and step, never changed."""

from collections.abc import Mapping, Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.kit.pages import LARGEST_INTEGER, Cursors, Page
from registry.packages import moves, service
from registry.packages.errors import InvalidPackage
from registry.packages.limits import MOST_METRICS, check_metrics
from registry.packages.model import PackageMetric
from registry.packages.ref import PackageRef, Ref
from registry.packages.repository import PackageRepository

MOST_NUMBERS = 10_000
"""Of one version. A curve with more belongs to the session that made it."""


async def log(
    db: AsyncSession,
    actor: Actor,
    ref: PackageRef,
    *,
    numbers: Mapping[str, float],
    step: int | None = None,
) -> Sequence[PackageMetric]:
    """Without a step they are of the version's own: an evaluation of what was saved."""
    check_metrics(numbers)
    if step is not None and not 0 <= step <= LARGEST_INTEGER:
        raise InvalidPackage("step", f"{step} is not between 0 and {LARGEST_INTEGER}")
    package = await moves.locked(db, actor, ref)
    package.require_live()
    packages = PackageRepository(db, actor.account_id)
    if await packages.count_metrics(package.id) + len(numbers) > MOST_NUMBERS:
        raise InvalidPackage("metrics", f"{ref} would have more than {MOST_NUMBERS} numbers")
    latest = {**(package.logged_metrics or {}), **numbers}
    if len({**package.metrics, **latest}) > MOST_METRICS:
        raise InvalidPackage("metrics", f"{ref} would have more than {MOST_METRICS} names")
    rows = [
        PackageMetric(
            account_id=actor.account_id,
            package_id=package.id,
            name=name,
            step=package.step if step is None else step,
            value=value,
        )
        for name, value in numbers.items()
    ]
    packages.add(*rows)
    package.logged_metrics = latest
    await db.flush()
    return rows


async def logged(
    db: AsyncSession,
    actor: Actor,
    ref: Ref,
    *,
    name: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[PackageMetric]:
    """In the order in which they were logged."""
    package = await service.require_version(db, actor, ref)
    cursors = Cursors((int,), ("metrics", package.id, name))
    position = cursors.read(cursor)
    rows = await PackageRepository(db, actor.account_id).metrics(
        package.id, name=name, after=int(position[0]) if position else None, limit=limit + 1
    )
    return cursors.page(rows, limit, lambda row: (row.id,))
