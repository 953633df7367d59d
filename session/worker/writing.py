"""Files on their way into the store, which the database knows of before the first byte."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.artifacts.manifest import FileEntry, list_files
from registry.artifacts.transfer import upload
from registry.packages import writes
from session.worker.context import Context

Place = tuple[str, str]
"""An id and a prefix of its own, so that no two tries write to the same place."""


@dataclass(frozen=True, slots=True)
class Written:
    id: str
    prefix: str
    files: Sequence[FileEntry]


async def write(
    context: Context, place: Place, folder: Path, actor: Actor, *, holder: str
) -> Written:
    """`holder` is the operation or the merge that it is done for."""
    paths = await asyncio.to_thread(list_files, folder)
    id_, prefix = place

    async def announce(db: AsyncSession) -> None:
        await writes.begin(db, actor, id_, prefix=prefix, paths=paths, holder=holder)

    await context.change(announce)
    return Written(id_, prefix, await upload(context.store, prefix, folder, paths))
