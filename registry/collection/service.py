"""Compare what lies in the store with what the database names, both ways, and delete what nobody
needs.

A thing dies in the database first, and its objects go after that, so a collection that is killed
at any point is finished by the next one. What is being written is safe whatever its age: it was
announced before its first byte, and an announcement is collected only by a transaction that keeps
it from being published.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from registry.artifacts.store import BlobStore, StoredObject, Unfinished
from registry.collection.claims import Claims
from registry.collection.places import PACKAGES, Place, place_of
from registry.collection.report import Damage, Report
from registry.collection.repository import CollectionRepository
from registry.kit.clock import now
from registry.kit.db import Database
from registry.packages.model import Package, PackageFile, PackageWrite
from registry.uploads import service as uploads

WRITES = "writes"
UPLOADS = "uploads"
_PAGE = 500


async def collect(
    database: Database,
    store: BlobStore,
    claims: Claims,
    *,
    older_than: timedelta,
    account_id: str | None = None,
    dry_run: bool = False,
) -> Report:
    """Over one account, or over all. What is younger than `older_than` stays in any case."""
    if not dry_run:
        async with database.begin() as db:
            await uploads.expire(db, at=now())
    job = _Collection(database, store, claims, account_id, now() - older_than, Report(dry_run))
    await job.writes()
    objects = await store.objects(job.below)
    await job.folders(objects)
    await job.uploads()
    await job.versions({each.key: each.size for each in objects})
    return job.report


@dataclass(frozen=True, slots=True)
class _Collection:
    database: Database
    store: BlobStore
    claims: Claims
    account_id: str | None
    before: datetime
    report: Report

    @property
    def below(self) -> str:
        return "" if self.account_id is None else f"{self.account_id}/"

    async def writes(self) -> None:
        """What was begun and cannot be published any more."""
        for write in await self._dead_writes():
            objects = await self.store.objects(write.prefix)
            strays = [each for key in write.keys for each in await self.store.unfinished(key)]
            self.report.heap(WRITES).add([each.size for each in objects])
            await self._abort(strays)
            if not self.report.is_dry_run:
                await self.store.delete_folder(write.prefix)
                async with self.database.begin() as db:
                    await CollectionRepository(db, self.account_id).forget(write.id)

    async def _dead_writes(self) -> Sequence[PackageWrite]:
        """Marked, so that nobody publishes them while their objects go."""
        is_dry = self.report.is_dry_run
        async with self.database.read() if is_dry else self.database.begin() as db:
            known = CollectionRepository(db, self.account_id)
            idle = await known.idle_writes(since=self.before)
            asked = [each.holder for each in idle if each.collected_at is None]
            living: set[str] = set()
            for holders in _chunks(asked):
                living |= await self.claims.holders(db, holders)
                living |= await uploads.living(db, holders)
            dead = [each for each in idle if each.collected_at or each.holder not in living]
            if is_dry:
                return dead
            marked: set[str] = set()
            for ids in _chunks(each.id for each in dead):
                marked |= await known.mark(ids, since=self.before)
            return [each for each in dead if each.id in marked]

    async def folders(self, objects: Sequence[StoredObject]) -> None:
        """Those that nothing in the database stands for."""
        by_place = await self._by_place(objects)
        for place in await self._dead(by_place):
            lying = by_place[place]
            if max(each.modified for each in lying) > self.before:
                continue
            self.report.heap(place.kind).add([each.size for each in lying])
            if not self.report.is_dry_run:
                await self.store.delete_folder(place.prefix)

    async def _by_place(self, objects: Sequence[StoredObject]) -> dict[Place, list[StoredObject]]:
        """Objects of others, and of accounts that another installation knows, are only counted."""
        async with self.database.read() as db:
            accounts = await CollectionRepository(db, self.account_id).accounts()
        found: dict[Place, list[StoredObject]] = defaultdict(list)
        for each in objects:
            place = place_of(each.key, self.claims.folders)
            if place is not None and place.account_id in accounts:
                found[place].append(each)
            else:
                self.report.foreign.add([each.size])
        return found

    async def _dead(self, places: Collection[Place]) -> list[Place]:
        """An id is never used again, so what is dead once it was listed stays dead."""
        living: set[str] = set()
        for kind in {place.kind for place in places}:
            for ids in _chunks(place.id for place in places if place.kind == kind):
                living |= await self._living(kind, ids)
        return sorted(
            (place for place in places if place.id not in living), key=lambda place: place.prefix
        )

    async def _living(self, kind: str, ids: Collection[str]) -> set[str]:
        async with self.database.read() as db:
            if kind != PACKAGES:
                return await self.claims.folders[kind](db, ids)
            known = CollectionRepository(db, self.account_id)
            # In this order: a publication in between takes the first away and adds the second.
            being_written = await known.write_ids(ids)
            return being_written | await known.stored_ids(ids)

    async def uploads(self) -> None:
        """Uploads in parts that nobody goes on with, as far as the store lists them."""
        async with self.database.read() as db:
            accounts = await CollectionRepository(db, self.account_id).accounts()
        by_place: dict[Place, list[Unfinished]] = defaultdict(list)
        for each in await self.store.unfinished(self.below):
            place = place_of(each.key, self.claims.folders)
            is_ours = place is not None and place.account_id in accounts
            if place is not None and is_ours and each.started <= self.before:
                by_place[place].append(each)
        await self._abort(
            [each for place in await self._dead(by_place) for each in by_place[place]]
        )

    async def _abort(self, strays: Sequence[Unfinished]) -> None:
        for each in strays:
            self.report.heap(UPLOADS).add([each.size])
            if not self.report.is_dry_run:
                await self.store.abort_multipart(each.key, each.upload_id)

    async def versions(self, sizes: dict[str, int]) -> None:
        """Listed versions whose files are not there. What came since the listing is looked up."""
        async for package, file in self._listed_files():
            key = package.prefix + file.path
            if sizes.get(key) == file.size:
                continue
            size = await self.store.size(key)
            if size != file.size and await self._is_listed(package):
                problem = (
                    "it is missing"
                    if size is None
                    else f"it has {size} bytes instead of {file.size}"
                )
                damage = Damage(package.ref, package.account_id, file.path, problem)
                self.report.damaged.append(damage)

    async def _listed_files(self) -> AsyncIterator[tuple[Package, PackageFile]]:
        after = ""
        while True:
            async with self.database.read() as db:
                known = CollectionRepository(db, self.account_id)
                packages = {each.id: each for each in await known.listed(after=after, limit=_PAGE)}
                files = await known.files(packages)
            if not packages:
                return
            for file in files:
                yield packages[file.package_id], file
            after = list(packages)[-1]

    async def _is_listed(self, package: Package) -> bool:
        async with self.database.read() as db:
            return await CollectionRepository(db, self.account_id).is_listed(package.id)


def _chunks(ids: Iterable[str]) -> Iterable[list[str]]:
    """As many as one query takes."""
    every = list(ids)
    return (every[start : start + _PAGE] for start in range(0, len(every), _PAGE))
