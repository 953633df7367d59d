"""A database and a store with what is needed in them, and what is not."""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.artifacts.manifest import FileEntry
from registry.artifacts.store import BlobStore
from registry.collection.claims import Claims
from registry.collection.report import Report
from registry.collection.service import collect
from registry.kit.db import Database
from registry.kit.ids import new_id
from registry.packages import writes
from registry.packages.model import Package, PackageDraft, PackageKind
from support.packages import a_draft, a_version, an_actor

ADAPTER = "checkpoints/hf/a.json"
STATE = "state/s.json"
FILES = {ADAPTER: b"12345", STATE: b"1234567"}
SIZE = 12


@dataclass
class Yard:
    """`living` are the sessions, and what is written for, that somebody still needs."""

    database: Database
    store: BlobStore
    alice: Actor
    living: set[str] = field(default_factory=set)

    async def collect(self, **options: Any) -> Report:
        claims = Claims(holders=self._live, folders={"sessions": self._live})
        given = {"older_than": timedelta(), **options}
        return await collect(self.database, self.store, claims, **given)

    async def version(self) -> Package:
        files = [FileEntry(path, len(data), "ab" * 32) for path, data in FILES.items()]
        async with self.database.begin() as db:
            package = await a_version(db, self.alice, kind=PackageKind.state, files=files)
        await self.put(package.prefix)
        return package

    async def begun(self, holder: str) -> PackageDraft:
        """Announced, and written but for its row."""
        draft = a_draft(self.alice, "demo", PackageKind.state)
        async with self.database.begin() as db:
            await writes.begin(
                db, self.alice, draft.id, prefix=draft.prefix, paths=list(FILES), holder=holder
            )
        await self.put(draft.prefix)
        return draft

    async def orphan(self, kind: str = "pkg", folder: str = "demo") -> str:
        prefix = f"{self.alice.account_id}/{folder}/{new_id(kind)}/"
        await self.put(prefix)
        return prefix

    async def put(self, prefix: str) -> None:
        for path, data in FILES.items():
            await self.store.put_bytes(prefix + path, data)

    async def folders(self) -> set[str]:
        """Of all objects that there are."""
        keys = await self.store.keys("")
        return {"/".join([*key.split("/")[:3], ""]) for key in keys}

    async def _live(self, db: AsyncSession, ids: Collection[str]) -> set[str]:
        return self.living & set(ids)


async def a_yard(database: Database, store: BlobStore, account: str = "alice") -> Yard:
    async with database.begin() as db:
        return Yard(database, store, await an_actor(db, account))


def heaps(report: Report) -> dict[str, tuple[int, int, int]]:
    return {kind: (heap.places, heap.objects, heap.bytes) for kind, heap in report.garbage.items()}


BEGIN_AND_DIE = """
import asyncio, os, signal, sys
from registry.artifacts.bucket import Bucket
from registry.artifacts.s3 import S3BlobStore

async def begin(name, endpoint, key):
    store = S3BlobStore(Bucket(name, endpoint=endpoint))
    upload = await store.begin_multipart(key)
    await store.put_part(key, upload, 1, b"m" * (5 * 2**20))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(begin(*sys.argv[1:]))
"""
