"""The commit of one upload. Each step may be done again, so a process that dies in the middle costs
time and nothing else: parts become objects, every byte is read back and checked, and one
transaction makes the version."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

import structlog

from exporters.base import BadFile
from registry.access.actor import Actor
from registry.artifacts.errors import MultipartNotFound
from registry.artifacts.store import BlobStore
from registry.kit.db import Database
from registry.kit.errors import Kind, ServiceError
from registry.kit.tasks import each
from registry.kit.trouble import DatabaseTrouble
from registry.models import service as models
from registry.models.model import BaseModel
from registry.packages.errors import WriteCollected
from registry.packages.model import PackageDraft, PackageKind
from registry.uploads import service
from registry.uploads.clearing import clear
from registry.uploads.errors import UploadFailed, UploadIncomplete
from registry.uploads.model import Upload, UploadFile, UploadState
from registry.uploads.reading import read_back
from registry.uploads.validation import Found, examine, fit_base

log = structlog.get_logger()
_SAY_EVERY_S = 5.0


class Commit:
    """Whoever makes one holds the upload's claim under `name`."""

    def __init__(
        self,
        database: Database,
        store: BlobStore,
        scratch: Path,
        actor: Actor,
        upload: Upload,
        name: str,
    ) -> None:
        self._database = database
        self._store = store
        self._scratch = scratch
        self._actor = actor
        self._upload = upload
        self._name = name

    async def run(self) -> None:
        """Raises what went wrong. What can still be repaired leaves the upload open."""
        try:
            await self._say_it_is_held()
            async with self._claim_kept(), self._folder() as folder:
                await self._finish_files()
                draft = await self._checked(folder)
            await self._publish(draft)
        except UploadIncomplete:
            await self._release(UploadState.open)
            raise
        except (BadFile, WriteCollected) as error:
            raise await self._failed(error) from None
        except ServiceError as error:
            if error.kind == Kind.invalid:
                raise await self._failed(error) from None
            await self._release(UploadState.committing)
            raise
        except (OSError, DatabaseTrouble, asyncio.CancelledError):
            await self._release(UploadState.committing)
            raise

    async def _finish_files(self) -> None:
        there = {found.key: found.size for found in await self._store.objects(self._upload.prefix)}
        files = [
            file
            for file in self._upload.files
            if there.get(self._upload.prefix + file.path) != file.size
        ]
        await each(files, self._finish)

    async def _finish(self, file: UploadFile) -> None:
        """A second finish of a finished one is success; the digest is compared afterwards."""
        key, numbers = self._upload.prefix + file.path, range(1, file.part_count + 1)
        if file.store_id is None:
            raise UploadIncomplete(file.path, numbers)
        try:
            parts = await self._store.parts(key, file.store_id)
        except MultipartNotFound:
            if await self._store.size(key) == file.size:
                return
            raise UploadIncomplete(file.path, numbers) from None
        good = {part.number: part for part in parts if part.number in numbers}
        missing = [n for n in numbers if n not in good or good[n].size != file.size_of(n)]
        if missing:
            raise UploadIncomplete(file.path, missing)
        await self._store.finish_multipart(key, file.store_id, [good[n] for n in numbers])

    async def _checked(self, folder: Path) -> PackageDraft:
        upload = self._upload
        await read_back(self._store, upload, folder)
        async with self._database.read() as db:
            base = await models.require_base_model(db, upload.base_model)
        found = await asyncio.to_thread(examine, folder, upload.kind, base)
        for path in found.whole:
            await self._store.fetch(upload.prefix + path, folder / path)
        await asyncio.to_thread(fit_base, found, base)
        for entry in found.added:
            await self._store.put_file(upload.prefix + entry.path, folder / entry.path)
        return _draft(upload, base, found)

    async def _publish(self, draft: PackageDraft) -> None:
        async with self._database.begin() as db:
            upload = await service.require_claim(db, self._actor, self._upload, self._name)
            await service.publish(db, self._actor, upload, draft)

    async def _failed(self, error: Exception) -> UploadFailed:
        """What was sent is of no use: it is told and taken away."""
        reason = str(error)
        async with self._database.begin() as db:
            upload = await service.require_claim(db, self._actor, self._upload, self._name)
            await service.give_up(db, upload, UploadState.failed, reason)
        log.info("upload.failed", upload=upload.id, reason=reason)
        await clear(self._database, self._store, upload)
        return UploadFailed(reason)

    async def _release(self, state: UploadState) -> None:
        """Let whoever asks next go on at once."""
        async with self._database.begin() as db:
            await service.release(db, self._actor, self._upload, self._name, state)

    async def _say_it_is_held(self) -> None:
        async with self._database.begin() as db:
            await service.refresh_claim(db, self._actor, self._upload, self._name)

    @asynccontextmanager
    async def _claim_kept(self) -> AsyncIterator[None]:
        """Say from time to time that somebody is still at work."""

        async def say() -> None:
            while True:
                await asyncio.sleep(_SAY_EVERY_S)
                with suppress(DatabaseTrouble):  # the next one may be heard
                    await self._say_it_is_held()

        saying = asyncio.create_task(say())
        try:
            yield
        finally:
            saying.cancel()
            await asyncio.gather(saying, return_exceptions=True)

    @asynccontextmanager
    async def _folder(self) -> AsyncIterator[Path]:
        self._scratch.mkdir(parents=True, exist_ok=True)
        folder = Path(mkdtemp(dir=self._scratch))
        try:
            yield folder
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _draft(upload: Upload, base: BaseModel, found: Found) -> PackageDraft:
    return PackageDraft(
        id=upload.id,
        kind=PackageKind(upload.kind),
        prefix=upload.prefix,
        files=sorted((*(file.entry for file in upload.files), *found.added)),
        base_model=base.name,
        base_digest=base.digest,
        lora=found.lora,
        parent_id=upload.parent_id,
        step=found.content.step,
        description=upload.description,
        user_metadata=upload.user_metadata,
    )
