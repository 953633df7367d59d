from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor, Role
from registry.kit.clock import now
from registry.packages import moves, service
from registry.packages.errors import (
    AliasIsProtected,
    AliasMoved,
    AliasNotFound,
    HistoryIsAppendOnly,
    InvalidPackage,
    VersionMoved,
)
from registry.packages.model import Approval, PackageAlias, PackageEvent
from registry.packages.ref import AliasRef, PackageRef
from support.packages import a_version, an_actor

ONE = PackageRef("demo", 1)


async def decide(
    db: AsyncSession, actor: Actor, approval: Approval, expected: int, why: str = ""
) -> int:
    package = await moves.decide(db, actor, ONE, approval=approval, expected=expected, why=why)
    return package.revision


async def point(
    db: AsyncSession, actor: Actor, version: int, expected: int | None, **more: Any
) -> PackageAlias:
    return await moves.point(db, actor, "demo", "prod", version=version, expected=expected, **more)


async def told(db: AsyncSession, actor: Actor, **wanted: Any) -> list[tuple[str | None, ...]]:
    page = await moves.history(db, actor, "demo", **wanted)
    return [(event.kind, event.source, event.target, event.why) for event in page.items]


async def test_a_decision_may_be_reversed_and_all_of_it_is_told(db: AsyncSession) -> None:
    actor = await an_actor(db)
    package = await a_version(db, actor)
    speaker = Actor(actor.account_id, Role.member, "tok_1")
    assert await decide(db, speaker, Approval.approved, 1, "good") == 2
    assert await decide(db, speaker, Approval.rejected, 2, "not so good") == 3
    assert await told(db, actor) == [
        ("approval", "approved", "rejected", "not so good"),
        ("approval", "pending", "approved", "good"),
    ]
    (last, _) = (await moves.history(db, actor, "demo")).items
    assert (last.token, last.role, last.digest) == ("tok_1", "member", package.digest)


async def test_a_decision_on_an_older_state_changes_nothing(db: AsyncSession) -> None:
    actor = await an_actor(db)
    await a_version(db, actor)
    await decide(db, actor, Approval.approved, 1)
    with pytest.raises(VersionMoved, match=r"demo@1 .* revision 2, not 1"):
        await decide(db, actor, Approval.rejected, 1)
    assert (await service.require_version(db, actor, ONE)).approval == Approval.approved
    assert len(await told(db, actor)) == 1


async def test_what_moves_nothing_is_no_event(db: AsyncSession) -> None:
    actor = await an_actor(db)
    await a_version(db, actor)
    assert await decide(db, actor, Approval.pending, 1) == 1
    alias = await point(db, actor, 1, None)
    assert (await point(db, actor, 1, alias.revision)).revision == alias.revision
    assert await told(db, actor) == [("alias", None, "demo@1", "")]


async def test_an_alias_leads_to_its_version_and_moves(db: AsyncSession) -> None:
    actor = await an_actor(db)
    for _ in range(2):
        await a_version(db, actor)
    first = await point(db, actor, 1, None, why="first")
    revision = first.revision
    found = await service.require_version(db, actor, AliasRef("demo", "prod"))
    assert found.ref == "demo@1"
    await point(db, actor, 2, revision, why="better")
    with pytest.raises(AliasMoved, match=f"demo:prod .* at demo@2, revision {revision + 1}"):
        await point(db, actor, 1, revision)
    assert (await service.require_version(db, actor, AliasRef("demo", "prod"))).ref == "demo@2"
    assert await told(db, actor, alias="prod") == [
        ("alias", "demo@1", "demo@2", "better"),
        ("alias", None, "demo@1", "first"),
    ]


async def test_latest_is_the_highest_number(db: AsyncSession) -> None:
    actor = await an_actor(db)
    for _ in range(2):
        await a_version(db, actor)
    assert (await service.require_version(db, actor, AliasRef("demo", "latest"))).ref == "demo@2"
    with pytest.raises(InvalidPackage, match="latest"):
        await moves.point(db, actor, "demo", "latest", version=1, expected=None)


async def test_a_removed_alias_leads_nowhere_and_its_revisions_go_on(db: AsyncSession) -> None:
    actor = await an_actor(db)
    await a_version(db, actor)
    revision = (await point(db, actor, 1, None)).revision
    with pytest.raises(AliasMoved):
        await moves.unpoint(db, actor, "demo", "prod", expected=revision + 1)
    await moves.unpoint(db, actor, "demo", "prod", expected=revision, why="over")
    for call in (
        service.require_version(db, actor, AliasRef("demo", "prod")),
        moves.require_alias(db, actor, "demo", "prod"),
        moves.unpoint(db, actor, "demo", "prod", expected=revision),
    ):
        with pytest.raises(AliasNotFound, match="'demo' has no alias named 'prod'"):
            await call
    with pytest.raises(AliasMoved, match="removed"):
        await point(db, actor, 1, revision)
    assert (await point(db, actor, 1, None)).revision == revision + 2
    assert (await told(db, actor))[1] == ("alias", "demo@1", None, "over")


async def test_a_protected_alias_is_moved_by_an_admin_only(db: AsyncSession) -> None:
    actor = await an_actor(db)
    admin = Actor(actor.account_id, Role.admin)
    for _ in range(2):
        await a_version(db, actor)
    with pytest.raises(AliasIsProtected):
        await point(db, actor, 1, None, protected=True)
    alias = await point(db, admin, 1, None, protected=True)
    tries: list[Callable[[], Coroutine[Any, Any, Any]]] = [
        lambda: point(db, actor, 2, alias.revision),
        lambda: point(db, actor, 1, alias.revision, protected=False),
        lambda: moves.unpoint(db, actor, "demo", "prod", expected=alias.revision),
    ]
    for attempt in tries:
        with pytest.raises(AliasIsProtected, match=r"demo:prod .* admin"):
            await attempt()
    moved = await point(db, admin, 2, alias.revision)
    assert (moved.is_protected, moved.package and moved.package.ref) == (True, "demo@2")


async def test_what_an_alias_was_at_a_time_is_known(db: AsyncSession) -> None:
    actor = await an_actor(db)
    for _ in range(3):
        await a_version(db, actor)
    moments, revision = [now()], None
    for version in (1, 3, 2):
        revision = (await point(db, actor, version, revision)).revision
        moments.append(now())
    await moves.unpoint(db, actor, "demo", "prod", expected=revision or 0)
    moments.append(now())
    then = [await moves.standing(db, actor, "demo", at=moment) for moment in moments]
    assert [[event.target for event in each] for each in then] == [
        *([], ["demo@1"], ["demo@3"], ["demo@2"], []),
    ]
    page = await moves.history(db, actor, "demo", alias="prod", at=moments[2], limit=1)
    assert [event.target for event in page.items] == ["demo@3"]


async def test_the_history_is_not_rewritten(db: AsyncSession) -> None:
    actor = await an_actor(db)
    await a_version(db, actor)
    await point(db, actor, 1, None)
    (event,) = (await moves.history(db, actor, "demo")).items
    for change in (_blame_somebody_else, _forget):
        with pytest.raises(HistoryIsAppendOnly):
            await change(db, event)
        await db.refresh(event)


async def _blame_somebody_else(db: AsyncSession, event: PackageEvent) -> None:
    async with db.begin_nested():
        event.token = "tok_other"


async def _forget(db: AsyncSession, event: PackageEvent) -> None:
    async with db.begin_nested():
        await db.delete(event)


@pytest.mark.parametrize("name", ["", "1", "-a", "a b", "a/b", "ü", "latest", "a" * 64, "a\0"])
async def test_a_bad_alias_is_refused(db: AsyncSession, name: str) -> None:
    actor = await an_actor(db)
    await a_version(db, actor)
    with pytest.raises(InvalidPackage, match="alias"):
        await moves.point(db, actor, "demo", name, version=1, expected=None)


async def test_a_reason_has_its_limits(db: AsyncSession) -> None:
    actor = await an_actor(db)
    await a_version(db, actor)
    for why in ("w" * 1025, "\0"):
        with pytest.raises(InvalidPackage, match="why"):
            await point(db, actor, 1, None, why=why)
        with pytest.raises(InvalidPackage, match="why"):
            await decide(db, actor, Approval.approved, 1, why)


async def test_a_list_shows_the_tags_and_aliases_also_of_what_another_was_made_from(
    db: AsyncSession,
) -> None:
    actor = await an_actor(db)
    parent = await a_version(db, actor)
    await a_version(db, actor, parent_id=parent.id)
    for name in ("second", "first"):
        await moves.point(db, actor, "demo", name, version=1, expected=None)
    await moves.edit(db, actor, PackageRef("demo", 1), {"tags": ["b", "a"]}, expected=1, why="")
    db.expunge_all()
    child, found = (await service.versions(db, actor, "demo")).items
    assert child.parent is found
    assert (found.tag_names, found.alias_names) == (["a", "b"], ["first", "second"])
    assert (child.tag_names, child.alias_names) == ([], [])
