"""Where uploads are taken in: what is to come, its parts, and the commit that makes a version.

Bytes go to the store directly where it can presign. Nothing here holds a transaction while it
waits for the store.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from secrets import token_hex

from registry.access.actor import Actor, Role
from registry.artifacts.errors import MultipartNotFound
from registry.artifacts.store import BlobStore, SignedUrl
from registry.kit.db import Database
from registry.kit.tasks import each
from registry.uploads import service
from registry.uploads.clearing import clear
from registry.uploads.commit import Commit, longest_check_s
from registry.uploads.errors import (
    InvalidUpload,
    PartRefused,
    UploadIncomplete,
)
from registry.uploads.model import OVER, Limits, Upload, UploadFile, UploadState, UploadWish

MOST_URLS = 1_000
"""Of one answer: they live for minutes, and there can be thousands of parts."""
_LOOK_AGAIN_S = 0.5
_AT_ONCE = 500
"""Files that are planned before other requests have their turn."""


@dataclass(frozen=True, slots=True)
class FilePlan:
    """What is there of a file and what is not. `urls` lead to the store, past us, for the next of
    the missing parts; None where they all come through us."""

    file: UploadFile
    received: Sequence[int] = ()
    missing: Sequence[int] = ()
    urls: Mapping[int, SignedUrl] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    upload: Upload
    files: Sequence[FilePlan]


class Desk:
    def __init__(
        self, database: Database, store: BlobStore, *, limits: Limits, scratch: Path
    ) -> None:
        self._database = database
        self._store = store
        self._limits = limits
        self._scratch = scratch
        self._commits: dict[str, asyncio.Task[None]] = {}

    async def begin(self, actor: Actor, group: str, wish: UploadWish) -> tuple[Plan, bool]:
        """The plan, and whether the upload is new. The same token goes on with the same upload."""
        async with self._database.begin() as db:
            upload, is_new = await service.add(db, actor, group, wish, self._limits)
        has_parts = any(file.size > self._limits.part_bytes for file in wish.files)
        if upload.state == UploadState.open and has_parts:
            await self._begin_files(actor, await self.upload(actor, group, upload.id))
        return await self.plan(actor, group, upload.id), is_new

    async def plan(self, actor: Actor, group: str, upload_id: str) -> Plan:
        """What is there, what is missing, and where that goes."""
        upload = await self.upload(actor, group, upload_id)
        if upload.state != UploadState.open:
            return Plan(upload, [FilePlan(file) for file in upload.files])
        # Whoever holds such a URL may write, so who may only read gets none.
        plans, left = [], MOST_URLS if actor.role != Role.viewer else 0
        for index, (file, received) in enumerate(await self._received(upload)):
            if index % _AT_ONCE == 0:
                await asyncio.sleep(0)  # most files have nothing to wait for
            there = set(received)
            missing = [n for n in range(1, file.part_count + 1) if n not in there]
            urls = await self._urls(upload, file, missing[:left])
            left -= len(urls or ())
            plans.append(FilePlan(file, received, missing, urls))
        return Plan(upload, plans)

    async def upload(self, actor: Actor, group: str, upload_id: str) -> Upload:
        async with self._database.read() as db:
            return await service.require_upload(db, actor, group, upload_id)

    async def put_part(
        self,
        actor: Actor,
        group: str,
        upload_id: str,
        path: str,
        number: int,
        body: AsyncIterator[bytes],
    ) -> None:
        """Putting one again replaces it. A file of one part is compared with its digest at once."""
        async with self._database.read() as db:
            upload = await service.require_bare(db, actor, group, upload_id)
            upload.require_open()
            file = await service.require_file(db, actor, upload, path)
        if not 1 <= number <= file.part_count:
            raise PartRefused(path, number, f"is not one of 1 to {file.part_count}")
        data = await _read(body, file, number)
        try:
            await self._put(upload.prefix + path, file, number, data)
        except MultipartNotFound:
            await self._require_still_open(actor, upload, file)
            raise
        await self._require_still_open(actor, upload, file)

    async def _put(self, key: str, file: UploadFile, number: int, data: bytes) -> None:
        if not file.is_large:
            found = hashlib.sha256(data).hexdigest()
            if found != file.sha256:
                reason = f"has the SHA-256 {found} instead of {file.sha256}"
                raise PartRefused(file.path, number, reason)
            await self._store.put_bytes(key, data)
        elif file.store_id is None:
            raise UploadIncomplete(file.path, [number])
        else:
            await self._store.put_part(key, file.store_id, number, data)

    async def _require_still_open(self, actor: Actor, upload: Upload, file: UploadFile) -> None:
        """What comes too late is taken away again: whoever cleared the upload did so before."""
        async with self._database.read() as db:
            found = await service.require_bare(db, actor, upload.group_name, upload.id)
        if found.state in OVER:
            key = upload.prefix + file.path
            if file.store_id is not None:
                await self._store.abort_multipart(key, file.store_id)
            await self._store.delete(key)
        found.require_open()

    async def commit(self, actor: Actor, group: str, upload_id: str, *, wait_s: float) -> Upload:
        """The upload as it is when its commit is over, or after `wait_s`: then ask again."""
        await self.upload(actor, group, upload_id)
        running = self._commits.get(upload_id)
        if running is None:
            # It outlives the request, so it has nothing of the request's context.
            work = self._commit(actor, group, upload_id)
            running = asyncio.create_task(work, context=Context())
            self._commits[upload_id] = running
            running.add_done_callback(partial(self._is_over, upload_id))
        await asyncio.wait((running,), timeout=wait_s)
        if running.done():
            running.result()
        return await self.upload(actor, group, upload_id)

    async def require_digest(self, actor: Actor, group: str, upload_id: str, digest: str) -> None:
        """What is committed is what the caller means."""
        found = (await self.upload(actor, group, upload_id)).digest
        if digest != found:
            raise InvalidUpload("digest", f"is {digest[:80]!r}; the files listed have {found}")

    async def abort(self, actor: Actor, group: str, upload_id: str) -> None:
        """Its parts and objects go with it, also while its commit runs."""
        async with self._database.begin() as db:
            upload = await service.abort(db, actor, group, upload_id)
        if not upload.is_cleared:
            await clear(self._database, self._store, upload)

    async def close(self) -> None:
        """A commit that is cut goes on when it is asked for again."""
        running = list(self._commits.values())
        for commit in running:
            commit.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _is_over(self, upload_id: str, commit: asyncio.Task[None]) -> None:
        """How it ended is known to the database, also where nobody waits any more."""
        self._commits.pop(upload_id, None)
        if not commit.cancelled():
            commit.exception()

    async def _commit(self, actor: Actor, group: str, upload_id: str) -> None:
        name = token_hex(16)
        while not await self._claimed(actor, upload_id, name):
            upload = await self.upload(actor, group, upload_id)
            if upload.state == UploadState.committed:
                return
            if upload.state != UploadState.committing:
                upload.require_open()
            await asyncio.sleep(_LOOK_AGAIN_S)
        upload = await self.upload(actor, group, upload_id)
        work = Commit(self._database, self._store, self._scratch, actor, upload, name)
        await work.run(limit_s=longest_check_s(upload.size))

    async def _claimed(self, actor: Actor, upload_id: str, name: str) -> bool:
        async with self._database.begin() as db:
            return await service.claim(db, actor, upload_id, name)

    async def _begin_files(self, actor: Actor, upload: Upload) -> None:
        """Every large file has its multipart upload, whose id is recorded before it is used. The
        store may have ended an old one."""
        for file, received in await self._received(upload):
            if not file.is_large or received:
                continue
            key = upload.prefix + file.path
            if file.store_id is not None and await self._is_begun(key, file.store_id):
                continue
            store_id = await self._store.begin_multipart(key)
            async with self._database.begin() as db:
                is_ours = await service.record_store_id(db, actor, file, store_id)
            if not is_ours:  # of two who begin at once, the second gives way
                await self._store.abort_multipart(key, store_id)

    async def _is_begun(self, key: str, store_id: str) -> bool:
        try:
            await self._store.parts(key, store_id)
        except MultipartNotFound:
            return False
        return True

    async def _received(self, upload: Upload) -> list[tuple[UploadFile, list[int]]]:
        there = {found.key: found.size for found in await self._store.objects(upload.prefix)}

        def is_there(file: UploadFile) -> bool:
            return there.get(upload.prefix + file.path) == file.size

        async def begun(file: UploadFile) -> tuple[str, list[int]]:
            return file.path, await self._parts(upload.prefix + file.path, file)

        asked = [file for file in upload.files if file.store_id and not is_there(file)]
        parts = dict(await each(asked, begun))

        def received() -> list[tuple[UploadFile, list[int]]]:
            return [
                (
                    file,
                    list(range(1, file.part_count + 1))
                    if is_there(file)
                    else parts.get(file.path, []),
                )
                for file in upload.files
            ]

        return await asyncio.to_thread(received)

    async def _parts(self, key: str, file: UploadFile) -> list[int]:
        assert file.store_id is not None
        try:
            parts = await self._store.parts(key, file.store_id)
        except MultipartNotFound:
            return []
        return [
            part.number
            for part in parts
            if part.number <= file.part_count and part.size == file.size_of(part.number)
        ]

    async def _urls(
        self, upload: Upload, file: UploadFile, numbers: Sequence[int]
    ) -> dict[int, SignedUrl] | None:
        if not file.is_large:
            return None
        found: dict[int, SignedUrl] = {}
        for number in numbers if file.store_id else ():
            key = upload.prefix + file.path
            url = await self._store.part_url(key, str(file.store_id), number)
            if url is None:
                return None
            found[number] = url
        return found


async def _read(body: AsyncIterator[bytes], file: UploadFile, number: int) -> bytes:
    """Exactly as many bytes as the part has; no more are held."""
    expected, pieces, size = file.size_of(number), [], 0
    async for piece in body:
        size += len(piece)
        if size > expected:
            raise PartRefused(file.path, number, f"has more than its {expected} bytes")
        pieces.append(piece)
    if size < expected:
        raise PartRefused(file.path, number, f"has {size} of its {expected} bytes")
    return b"".join(pieces)
