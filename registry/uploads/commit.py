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
from registry.kit.errors import Kind, ServiceError, StorageFull, is_full
from registry.kit.tasks import each
from registry.kit.text import printable
from registry.kit.trouble import DatabaseTrouble
from registry.models import service as models
from registry.models.model import BaseModel
from registry.packages.errors import WriteCollected
from registry.packages.model import PackageDraft, PackageKind
from registry.uploads import service
from registry.uploads.clearing import clear
from registry.uploads.errors import CommitBroken, UploadFailed, UploadIncomplete, UploadOver
from registry.uploads.model import OVER, Upload, UploadFile, UploadState
from registry.uploads.reading import read_back
from registry.uploads.validation import Found, examine, fit_base

log = structlog.get_logger()
_SAY_EVERY_S = 5.0


def longest_check_s(size: int) -> float:
    """Of an upload's bytes, which are all read: five minutes, and ten for each GiB."""
    return 300 + 600 * size / 2**30


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

    async def run(self, *, limit_s: float) -> None:
        """Raises what went wrong. What is no fault of the content leaves the upload open."""
        try:
            await self._run(limit_s)
        except UploadFailed:
            raise
        except asyncio.CancelledError as error:
            with suppress(UploadOver):
                await self._release(error)
            raise
        except (ServiceError, DatabaseTrouble) as error:
            await self._release(error)
            raise
        except Exception as error:
            if is_full(error):
                await self._release(error)
                raise StorageFull from None
            log.exception("upload.broken", upload=self._upload.id)
            await self._release(error)
            raise CommitBroken from None

    async def _run(self, limit_s: float) -> None:
        try:
            await self._say_it_is_held()
            await self._publish(await self._draft(limit_s))
        except (BadFile, WriteCollected) as error:
            raise await self._failed(error) from None
        except ServiceError as error:
            if error.kind == Kind.invalid:
                raise await self._failed(error) from None
            raise

    async def _draft(self, limit_s: float) -> PackageDraft:
        """A check without an end would hold the upload for ever."""
        clock = asyncio.timeout(limit_s)
        try:
            async with self._claim_kept(), self._folder() as folder, clock:
                await self._finish_files()
                return await self._checked(folder)
        except TimeoutError:
            if not clock.expired():
                raise
            raise UploadFailed(f"files: their check took more than {limit_s:g} seconds") from None

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
        reason = printable(str(error))
        async with self._database.begin() as db:
            upload = await service.require_claim(db, self._actor, self._upload, self._name)
            await service.give_up(db, upload, UploadState.failed, reason)
        log.info("upload.failed", upload=upload.id, reason=reason)
        await self._clear()
        return UploadFailed(reason)

    async def _clear(self) -> None:
        try:
            await clear(self._database, self._store, self._upload)
        except (OSError, ServiceError, DatabaseTrouble) as error:  # the keeper does it again
            log.warning("upload.not_cleared", upload=self._upload.id, reason=str(error))

    async def _release(self, error: BaseException) -> None:
        """Let whoever asks next go on at once. Of an upload that was given up meanwhile, what was
        written since goes too."""
        log.info("upload.commit_stopped", upload=self._upload.id, reason=printable(str(error)))
        try:
            async with self._database.begin() as db:
                upload = await service.release(
                    db, self._actor, self._upload, self._name, UploadState.open
                )
        except DatabaseTrouble as trouble:  # the claim grows old by itself
            log.warning("upload.not_released", upload=self._upload.id, reason=str(trouble))
            return
        if upload.state in OVER:
            await self._clear()
            upload.require_open()

    async def _say_it_is_held(self) -> None:
        async with self._database.begin() as db:
            await service.refresh_claim(db, self._actor, self._upload, self._name)

    @asynccontextmanager
    async def _claim_kept(self) -> AsyncIterator[None]:
        """Say from time to time that somebody is still at work; stop once the claim is lost."""

        async def say() -> None:
            while True:
                await asyncio.sleep(_SAY_EVERY_S)
                with suppress(DatabaseTrouble):  # the next one may be heard
                    await self._say_it_is_held()

        try:
            async with asyncio.TaskGroup() as group:
                saying = group.create_task(say())
                yield
                saying.cancel()
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

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
