"""Files on their way into the store, which the database knows of before the first byte."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.artifacts.manifest import FileEntry
from registry.artifacts.transfer import upload
from registry.packages import writes
from session.worker.context import Context


@dataclass(frozen=True, slots=True)
class Written:
    """Under an id of its own, so that no two tries write to the same place."""

    id: str
    prefix: str
    files: Sequence[FileEntry]


async def write(
    context: Context, what: Written, folder: Path, actor: Actor, *, holder: str
) -> None:
    """`holder` is the operation or the merge that it is done for."""
    paths = [file.path for file in what.files]

    async def announce(db: AsyncSession) -> None:
        await writes.begin(db, actor, what.id, prefix=what.prefix, paths=paths, holder=holder)

    await context.change(announce)
    await upload(context.store, what.prefix, folder, what.files)
