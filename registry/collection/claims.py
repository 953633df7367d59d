"""What the registry cannot know of its objects: whether somebody outside still needs them."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field

from sqlalchemy.ext.asyncio import AsyncSession

Living = Callable[[AsyncSession, Collection[str]], Awaitable[set[str]]]
"""Of these ids, those that live. One that has died never lives again."""


async def nobody(db: AsyncSession, ids: Collection[str]) -> set[str]:
    return set()


@dataclass(frozen=True, slots=True)
class Claims:
    """`holders` tells of what files are written for, so whether those may still be published.

    `folders` names the folders of an account that are no groups: what lies in
    `ACCOUNT/FOLDER/ID/` is needed as long as ID lives.
    """

    holders: Living = nobody
    folders: Mapping[str, Living] = field(default_factory=dict)
