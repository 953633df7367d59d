"""The object store for more than one machine: any server that speaks S3.

This is the only module that knows boto3. Its calls block, so each runs in a thread. Integrity is
ours, a SHA-256 a file in the manifest; the SDK's own checksums are a setting, as many servers
know none. Retries with back-off are botocore's; nothing retries around them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    ProxyConnectionError,
    ReadTimeoutError,
    ResponseStreamingError,
    SSLError,
)
from s3transfer.exceptions import RetriesExceededError, S3DownloadFailedError
from s3transfer.futures import TransferFuture
from s3transfer.manager import TransferConfig, TransferManager

from registry.artifacts.bucket import Bucket
from registry.artifacts.errors import (
    BlobNotFound,
    InvalidArtifactName,
    StoreRefused,
    StoreUnavailable,
)
from registry.artifacts.names import LONGEST_NAME, validate_artifact_name
from registry.artifacts.store import CHUNK, require_folder
from registry.kit.clock import now

T = TypeVar("T")
MIB = 2**20
SMALLEST_PART = 5 * MIB
LARGEST_PART = 5 * 2**30
MOST_PARTS = 9_900
"""S3 takes 10,000."""
LONGEST_URL_S = 900
_BATCH = 1_000  # the most keys that one request deletes
_IO_QUEUE = 64  # MiB that wait for the disk while a file comes in
_UPLOAD = "modelyard-upload"
_ABSENT = frozenset(("404", "NoSuchKey", "NotFound"))
_AWAY = (
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    ProxyConnectionError,
    RetriesExceededError,
    S3DownloadFailedError,
)
_CUT = (IncompleteReadError, ReadTimeoutError, ResponseStreamingError)


@dataclass(frozen=True, slots=True)
class SignedUrl:
    url: str
    expires_at: datetime


def part_size(total: int, smallest: int) -> int:
    """Of a file of `total` bytes: a whole number of MiB, so large that the parts are few enough."""
    needed = -(-total // MOST_PARTS)
    chosen = max(smallest, SMALLEST_PART, -(-needed // MIB) * MIB)
    if chosen > LARGEST_PART:
        raise InvalidArtifactName(f"{total} bytes", "are more than one object can hold")
    return chosen


def make_client(bucket: Bucket, *, endpoint: str | None = None) -> Any:
    """`verify` stays None where nothing is set: True would hide AWS_CA_BUNDLE from botocore."""
    config = Config(
        signature_version="s3v4",
        s3={"addressing_style": bucket.addressing},
        request_checksum_calculation=bucket.checksums,
        response_checksum_validation=bucket.checksums,
        retries={"mode": "standard", "total_max_attempts": bucket.attempts},
        max_pool_connections=bucket.concurrency + 10,
        connect_timeout=10,
        read_timeout=60,
        tcp_keepalive=True,
    )
    trusted = str(bucket.ca_bundle) if bucket.ca_bundle else None
    with translated(""):
        return boto3.session.Session().client(
            "s3",
            region_name=bucket.region,
            endpoint_url=endpoint or bucket.endpoint,
            verify=trusted if bucket.verify else False,
            config=config,
        )


def trusted_bundle(bucket: Bucket) -> str | None:
    """The file with the authorities that a client of this bucket trusts, if one is named."""
    if bucket.ca_bundle:
        return str(bucket.ca_bundle)
    named = botocore.session.Session().get_config_variable("ca_bundle")
    return str(named) if named else None


@contextmanager
def translated(key: str) -> Iterator[None]:
    """What the SDK raises, in the registry's words."""
    try:
        yield
    except ClientError as error:
        raise _meaning(key, error) from None
    except SSLError as error:
        raise StoreUnavailable(
            f"its certificate is not trusted ({error}); set MODELYARD_OBJECTS__CA_BUNDLE"
        ) from None
    except _AWAY as error:
        raise StoreUnavailable(str(error)) from None
    except BotoCoreError as error:
        raise StoreRefused(type(error).__name__, str(error)) from None


def _meaning(key: str, error: ClientError) -> BlobNotFound | StoreUnavailable | StoreRefused:
    found = error.response.get("Error", {})
    code, message = str(found.get("Code", "")), str(found.get("Message", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _ABSENT:
        return BlobNotFound(key)
    if status >= 500 or status == 429:
        return StoreUnavailable(f"it answers {status} {code}")
    return StoreRefused(code, message)


class S3BlobStore:
    """One object a key below `prefix`. S3 itself shows an object whole or not at all."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._prefix = f"{bucket.prefix.strip('/')}/" if bucket.prefix.strip("/") else ""
        self._client = make_client(bucket)
        self._signer = (
            make_client(bucket, endpoint=bucket.public_endpoint)
            if bucket.public_endpoint
            else self._client
        )

    async def put_file(self, key: str, path: Path) -> None:
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
                ),
            )
        except StoreRefused as refused:
            if refused.code != "NoSuchUpload" or not await self._is_there(key, size, token):
                raise

    async def put_bytes(self, key: str, data: bytes) -> None:
        where = self._where(key)
        await self._call(key, lambda: self._client.put_object(**where, Body=data))

    async def read(self, key: str) -> bytes:
        return b"".join([piece async for piece in self.stream(key)])

    async def stream(self, key: str, *, chunk: int = CHUNK) -> AsyncIterator[bytes]:
        reader = _Reader(self._client, self._where(key), self._bucket.attempts)
        try:
            while piece := await self._call(key, lambda: reader.read(chunk)):
                yield piece
        finally:
            reader.close()

    async def fetch(self, key: str, path: Path) -> None:
        """Written beside and renamed; parts come several at once, each again where it is cut."""
        where = self._where(key)
        await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
        await self._transfer(
            key,
            self._bucket.part_bytes,
            lambda manager: manager.download(where["Bucket"], where["Key"], str(path)),
        )

    async def size(self, key: str) -> int | None:
        found = await self._head(key)
        return None if found is None else int(found["ContentLength"])

    async def keys(self, prefix: str) -> list[str]:
        return await self._call(prefix, lambda: sorted(self._listed(prefix)))

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
        lives = min(expires_s, LONGEST_URL_S)
        where, expires_at = self._where(key), now() + timedelta(seconds=lives)
        url = await self._call(
            key,
            lambda: self._signer.generate_presigned_url(
                "get_object", Params=where, ExpiresIn=lives
            ),
        )
        return SignedUrl(str(url), expires_at)

    def close(self) -> None:
        self._client.close()
        self._signer.close()

    def _where(self, key: str) -> dict[str, str]:
        whole = self._prefix + validate_artifact_name(key)
        if len(whole.encode()) > LONGEST_NAME:
            raise InvalidArtifactName(key[:80], f"is, with the prefix, longer than {LONGEST_NAME}")
        return {"Bucket": self._bucket.name, "Key": whole}

    async def _call(self, key: str, work: Callable[[], T]) -> T:
        with translated(key):
            return await asyncio.to_thread(work)

    async def _transfer(
        self, key: str, part: int, begin: Callable[[TransferManager], TransferFuture]
    ) -> None:
        """A task that is cancelled stops its transfer, too, and an upload's parts are removed."""
        config = TransferConfig(
            multipart_threshold=part,
            multipart_chunksize=part,
            max_request_concurrency=self._bucket.concurrency,
            max_io_queue_size=_IO_QUEUE,
            io_chunksize=MIB,
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

    async def _head(self, key: str) -> dict[str, Any] | None:
        where = self._where(key)
        try:
            found: dict[str, Any] = await self._call(key, lambda: self._client.head_object(**where))
        except BlobNotFound:
            return None
        return found

    def _listed(self, prefix: str) -> Iterator[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket.name, Prefix=self._prefix + prefix
        )
        for page in pages:
            for found in page.get("Contents", ()):
                yield str(found["Key"]).removeprefix(self._prefix)

    def _delete(self, keys: Sequence[str]) -> None:
        named = [{"Key": self._where(key)["Key"]} for key in keys]
        answer = self._client.delete_objects(
            Bucket=self._bucket.name, Delete={"Objects": named, "Quiet": True}
        )
        kept = [error for error in answer.get("Errors", ()) if error.get("Code") not in _ABSENT]
        if kept:
            raise StoreRefused(str(kept[0].get("Code")), f"{len(kept)} objects were not deleted")


class _Reader:
    """One object from its start to its end. Where a body is cut, the rest is asked for again."""

    def __init__(self, client: Any, where: dict[str, str], attempts: int) -> None:
        self._client = client
        self._where = where
        self._attempts = attempts
        self._offset = 0
        self._etag = ""
        self._body: Any = None

    def read(self, size: int) -> bytes:
        for _ in range(self._attempts - 1):
            try:
                return self._read(size)
            except _CUT:
                self.close()
        return self._read(size)

    def close(self) -> None:
        if self._body is not None:
            self._body.close()
        self._body = None

    def _read(self, size: int) -> bytes:
        if self._body is None:
            rest = {"Range": f"bytes={self._offset}-", "IfMatch": self._etag}
            answer = self._client.get_object(**self._where, **(rest if self._offset else {}))
            self._body, self._etag = answer["Body"], answer["ETag"]
        data: bytes = self._body.read(size)
        self._offset += len(data)
        return data
