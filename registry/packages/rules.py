"""What a group asks of its versions. Such a change is an event of its history, as any move."""

from typing import TypedDict

from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor, Role
from registry.packages.errors import GroupNotFound, RuleIsForAdmins
from registry.packages.limits import check_description, check_text
from registry.packages.model import EventKind, PackageEvent, PackageGroup
from registry.packages.repository import PackageRepository


class Settings(TypedDict, total=False):
    """What is left out stays."""

    description: str
    require_approval: bool


async def edit_group(
    db: AsyncSession, actor: Actor, name: str, changes: Settings, *, expected: int, why: str = ""
) -> PackageGroup:
    check_text("why", why)
    check_description(changes.get("description", ""))
    group = await PackageRepository(db, actor.account_id).group(name, lock=True)
    if group is None:
        raise GroupNotFound(name)
    group.require_revision(expected)
    wanted = changes.get("require_approval", group.require_approval)
    if wanted != group.require_approval:
        if not actor.role.covers(Role.admin):
            raise RuleIsForAdmins(name)
        _record(db, actor, group, wanted=wanted, why=why)
    group.require_approval = wanted
    group.description = changes.get("description", group.description)
    group.revision += 1
    await db.flush()
    return group


def _record(db: AsyncSession, actor: Actor, group: PackageGroup, *, wanted: bool, why: str) -> None:
    PackageRepository(db, actor.account_id).add(
        PackageEvent(
            account_id=actor.account_id,
            group_id=group.id,
            kind=EventKind.require_approval,
            source=_word(group.require_approval),
            target=_word(wanted),
            role=actor.role,
            token=actor.token,
            why=why,
        )
    )


def _word(is_required: bool) -> str:
    return "on" if is_required else "off"
