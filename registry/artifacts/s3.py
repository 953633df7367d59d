"""The object store for more than one machine: any server that speaks S3.

Integrity is ours, a SHA-256 a file in the manifest; the SDK's own checksums are a setting, as
many servers know none.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from secrets import token_hex

from s3transfer.futures import TransferFuture
from s3transfer.manager import TransferConfig, TransferManager
from s3transfer.subscribers import BaseSubscriber

from registry.artifacts.errors import BlobNotFound, MultipartNotFound, StoreRefused
from registry.artifacts.parts import part_size
from registry.artifacts.s3_client import ABSENT, translated
from registry.artifacts.s3_download import Download
from registry.artifacts.s3_multipart import MultipartUploads
from registry.artifacts.s3_reader import Reader
from registry.artifacts.store import (
    CHUNK,
    LONGEST_URL_S,
    Progress,
    SignedUrl,
    StoredObject,
    require_folder,
)

_BATCH = 1_000  # the most keys that one request deletes
_UPLOAD = "modelyard-upload"


class S3BlobStore(MultipartUploads):
    """One object a key below `prefix`. S3 itself shows an object whole or not at all."""

    async def put_file(self, key: str, path: Path, *, progress: Progress | None = None) -> None:
        """In parts read from the disk, several at once; memory does not grow with the file."""
        where = self._where(key)
        size = (await asyncio.to_thread(path.stat)).st_size
        token = token_hex(16)
        try:
            await self._transfer(
                key,
                part_size(size, self._bucket.part_bytes),
                lambda manager: manager.upload(
                    str(path),
                    where["Bucket"],
                    where["Key"],
                    extra_args={"Metadata": {_UPLOAD: token}},
                    subscribers=_told(progress),
                ),
            )
        except MultipartNotFound:
            if not await self._is_there(key, size, token):
                raise

    async def put_bytes(self, key: str, data: bytes) -> None:
        where = self._where(key)
        await self._call(key, lambda: self._client.put_object(**where, Body=data))

    async def read(self, key: str) -> bytes:
        return b"".join([piece async for piece in self.stream(key)])

    async def stream(
        self, key: str, *, chunk: int = CHUNK, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        reader = Reader(self._client, self._where(key), self._bucket.attempts, start, end)
        try:
            while piece := await self._call(key, lambda: reader.read(chunk)):
                yield piece
        finally:
            reader.close()

    async def fetch(self, key: str, path: Path, *, progress: Progress | None = None) -> str:
        """A task that is cancelled stops its threads; what has come by then stays."""
        found = await self._head(key)
        if found is None:
            raise BlobNotFound(key)
        download = Download(
            client=self._client,
            where=self._where(key),
            etag=str(found["ETag"]),
            size=int(found["ContentLength"]),
            attempts=self._bucket.attempts,
            progress=progress,
        )
        coming = asyncio.create_task(
            self._call(
                key,
                lambda: download.run(
                    path, step=self._bucket.part_bytes, concurrency=self._bucket.concurrency
                ),
            )
        )
        try:
            return await asyncio.shield(coming)
        except asyncio.CancelledError:
            download.stop.set()
            await asyncio.wait((coming,))
            raise

    async def keys(self, prefix: str) -> list[str]:
        return [found.key for found in await self.objects(prefix)]

    async def objects(self, prefix: str) -> list[StoredObject]:
        found = await self._call(
            prefix,
            partial(
                self._pages,
                "list_objects_v2",
                "Contents",
                Bucket=self._bucket.name,
                Prefix=self._prefix + prefix,
            ),
        )
        listed = [
            StoredObject(
                str(each["Key"]).removeprefix(self._prefix), int(each["Size"]), each["LastModified"]
            )
            for each in found
        ]
        return sorted(listed, key=lambda each: each.key)

    async def delete(self, key: str) -> None:
        where = self._where(key)
        try:
            await self._call(key, lambda: self._client.delete_object(**where))
        except BlobNotFound:  # a few servers say so
            return

    async def delete_folder(self, prefix: str) -> int:
        keys = await self.keys(require_folder(prefix))
        for start in range(0, len(keys), _BATCH):
            batch = keys[start : start + _BATCH]
            await self._call(prefix, partial(self._delete, batch))
        return len(keys)

    async def signed_url(self, key: str, *, expires_s: int = LONGEST_URL_S) -> SignedUrl:
        """Lets whoever holds it read this one object for a while, past the service."""
        return await self._signed(key, "get_object", expires_s)

    async def _transfer(
        self, key: str, part: int, begin: Callable[[TransferManager], TransferFuture]
    ) -> None:
        """A task that is cancelled stops its transfer, too, and an upload's parts are removed."""
        config = TransferConfig(
            multipart_threshold=part,
            multipart_chunksize=part,
            max_request_concurrency=self._bucket.concurrency,
        )
        manager = TransferManager(self._client, config)
        try:
            future = begin(manager)
            try:
                with translated(key):
                    await asyncio.to_thread(future.result)
            except asyncio.CancelledError:
                future.cancel()
                raise
        finally:
            await asyncio.to_thread(manager.shutdown)

    async def _is_there(self, key: str, size: int, token: str) -> bool:
        """The answer to an upload's end was lost, and asking again finds no upload: it had ended
        well if the object is the one that carries this upload's mark."""
        found = await self._head(key)
        return (
            found is not None
            and found["ContentLength"] == size
            and found.get("Metadata", {}).get(_UPLOAD) == token
        )

    def _delete(self, keys: Sequence[str]) -> None:
        named = [{"Key": self._where(key)["Key"]} for key in keys]
        answer = self._client.delete_objects(
            Bucket=self._bucket.name, Delete={"Objects": named, "Quiet": True}
        )
        kept = [error for error in answer.get("Errors", ()) if error.get("Code") not in ABSENT]
        if kept:
            raise StoreRefused(str(kept[0].get("Code")), f"{len(kept)} objects were not deleted")


class _Told(BaseSubscriber):  # type: ignore[misc]  # the library has no types
    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def on_progress(self, future: TransferFuture, bytes_transferred: int, **more: object) -> None:
        self._progress(bytes_transferred)


def _told(progress: Progress | None) -> list[BaseSubscriber]:
    return [] if progress is None else [_Told(progress)]
