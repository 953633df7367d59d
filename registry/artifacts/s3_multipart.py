"""Uploads in parts, as S3 knows them: begun, continued and ended by whoever has the id."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from registry.artifacts.errors import BlobNotFound, MultipartNotFound
from registry.artifacts.parts import require_part_number, require_some
from registry.artifacts.s3_client import Connection
from registry.artifacts.store import LONGEST_URL_S, Part, SignedUrl, Unfinished

_WAITS_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


class MultipartUploads(Connection):
    async def begin_multipart(self, key: str) -> str:
        where = self._where(key)
        begun = await self._call(key, lambda: self._client.create_multipart_upload(**where))
        return str(begun["UploadId"])

    async def put_part(self, key: str, upload_id: str, number: int, data: bytes) -> Part:
        require_part_number(key, number)
        where = self._where(key)
        answer = await self._call(
            key,
            lambda: self._client.upload_part(
                **where, UploadId=upload_id, PartNumber=number, Body=data
            ),
        )
        return Part(number, len(data), _tag(answer))

    async def part_url(
        self, key: str, upload_id: str, number: int, *, expires_s: int = LONGEST_URL_S
    ) -> SignedUrl:
        require_part_number(key, number)
        return await self._signed(
            key, "upload_part", expires_s, UploadId=upload_id, PartNumber=number
        )

    async def parts(self, key: str, upload_id: str) -> list[Part]:
        found = await self._call(
            key, partial(self._pages, "list_parts", "Parts", **self._where(key), UploadId=upload_id)
        )
        return [Part(int(each["PartNumber"]), int(each["Size"]), _tag(each)) for each in found]

    async def finish_multipart(self, key: str, upload_id: str, parts: Sequence[Part]) -> None:
        """A server may say that it is done of an upload that was aborted: the size tells. It may
        say so, too, while somebody else still finishes it and no object shows: it gets a moment.
        """
        require_some(key, parts)
        where = self._where(key)
        listed = [{"PartNumber": part.number, "ETag": part.etag} for part in parts]
        with suppress(MultipartNotFound):
            await self._call(
                key,
                lambda: self._client.complete_multipart_upload(
                    **where, UploadId=upload_id, MultipartUpload={"Parts": listed}
                ),
            )
        whole = sum(part.size for part in parts)
        for wait in (*_WAITS_S, None):
            if await self.size(key) == whole:
                return
            if wait is None:
                raise MultipartNotFound(key)
            await asyncio.sleep(wait)

    async def abort_multipart(self, key: str, upload_id: str) -> None:
        where = self._where(key)
        try:
            await self._call(
                key, lambda: self._client.abort_multipart_upload(**where, UploadId=upload_id)
            )
        except MultipartNotFound:
            return

    async def unfinished(self, prefix: str) -> list[Unfinished]:
        found = await self._call(
            prefix,
            partial(
                self._pages,
                "list_multipart_uploads",
                "Uploads",
                Bucket=self._bucket.name,
                Prefix=self._prefix + prefix,
            ),
        )
        listed = [await self._unfinished(each) for each in found]
        return [each for each in listed if each is not None]

    async def size(self, key: str) -> int | None:
        found = await self._head(key)
        return None if found is None else int(found["ContentLength"])

    async def _unfinished(self, found: dict[str, Any]) -> Unfinished | None:
        """None where it was ended since it was listed."""
        key, upload_id = str(found["Key"]).removeprefix(self._prefix), str(found["UploadId"])
        try:
            size = sum(part.size for part in await self.parts(key, upload_id))
        except MultipartNotFound:
            return None
        return Unfinished(key, upload_id, found["Initiated"], size)

    async def _head(self, key: str) -> dict[str, Any] | None:
        where = self._where(key)
        try:
            found: dict[str, Any] = await self._call(key, lambda: self._client.head_object(**where))
        except BlobNotFound:
            return None
        return found

    def _pages(self, operation: str, rows: str, **params: Any) -> list[dict[str, Any]]:
        pages = self._client.get_paginator(operation).paginate(**params)
        return [each for page in pages for each in page.get(rows, ())]


def _tag(answer: dict[str, Any]) -> str:
    """Servers differ in whether they quote it."""
    return str(answer["ETag"]).strip('"')
