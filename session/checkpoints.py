"""The one bridge to the registry's packages: what a worker writes becomes a version, and what a
version holds becomes files that an engine reads."""

import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor, Role
from registry.artifacts.manifest import FileEntry
from registry.artifacts.store import BlobStore
from registry.artifacts.transfer import materialize
from registry.kit.errors import ServiceError
from registry.models import service as models
from registry.models.model import BaseModel
from registry.packages import service as packages
from registry.packages.model import Package
from registry.packages.service import PackageRef
from session.engine.port import BaseRef
from session.lifecycle import service as lifecycle
from session.lifecycle.repository import WorkerRepository

log = structlog.get_logger()

ADAPTER = "checkpoints/hf"
MERGED = "checkpoints/hf_merged"
STATE = "state"


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a set of verified files lies in the object store."""

    id: str
    prefix: str
    files: Sequence[FileEntry]

    def parts(self, *folders: str) -> "Stored":
        kept = [f for f in self.files if any(f.path.startswith(folder + "/") for folder in folders)]
        return Stored(self.id, self.prefix, kept)


def account_actor(account_id: str) -> Actor:
    """The account itself, for work that a worker does in its name."""
    return Actor(account_id, Role.member)


async def stored(db: AsyncSession, account_id: str, ref: PackageRef) -> tuple[Package, Stored]:
    package = await packages.require_live(db, account_actor(account_id), ref)
    files = await packages.files(db, package)
    return package, Stored(package.id, package.prefix, files)


async def held(db: AsyncSession, session_id: str, ref: PackageRef) -> tuple[Package, Stored]:
    """The same for a session, which keeps it for as long as it lives."""
    session = await WorkerRepository(db).require(session_id, lock=True)
    await lifecycle.hold(db, session, ref)
    return await stored(db, session.account_id, ref)


@asynccontextmanager
async def on_disk(store: BlobStore, found: Stored, workdir: Path) -> AsyncIterator[Path]:
    """The files, verified, in a folder that is gone afterwards."""
    with scratch(workdir) as folder:
        target = folder / "files"
        await materialize(store, found.prefix, found.files, target)
        yield target


def session_prefix(account_id: str, session_id: str) -> str:
    """Where everything lies that goes when the session ends: bodies and sampler weights."""
    return f"{account_id}/sessions/{session_id}/"


def weights_prefix(account_id: str, session_id: str, weights_id: str) -> str:
    return f"{session_prefix(account_id, session_id)}weights/{weights_id}/"


async def discard(store: BlobStore, prefix: str) -> None:
    """Delete what no row names any more. Storage that is away keeps it: that harms nobody."""
    try:
        for key in await store.keys(prefix):
            await store.delete(key)
    except (OSError, ServiceError) as error:
        log.warning("storage.left_over", prefix=prefix, reason=str(error))


@contextmanager
def scratch(workdir: Path) -> Iterator[Path]:
    workdir.mkdir(parents=True, exist_ok=True)
    folder = Path(mkdtemp(dir=workdir))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def base_ref(base: BaseModel) -> BaseRef:
    return BaseRef.of(base.name, base.digest, base.path)


async def require_base(db: AsyncSession, name: str) -> BaseRef:
    """What it is, not whether its files are there: that a worker's `Bases` knows."""
    return base_ref(await models.require_base_model(db, name))
