"""A client of a server that speaks S3, what it raises in the registry's words, and its keys.

The modules `s3*` are the only users of boto3. Its calls block, so each runs in a thread. Retries
with back-off are botocore's; nothing retries around them.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
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
    SSLError,
)
from s3transfer.exceptions import RetriesExceededError, S3DownloadFailedError

from registry.artifacts.bucket import Bucket
from registry.artifacts.errors import (
    BlobNotFound,
    InvalidArtifactName,
    MultipartNotFound,
    PartsRefused,
    StoreRefused,
    StoreUnavailable,
)
from registry.artifacts.names import LONGEST_NAME, validate_artifact_name
from registry.artifacts.store import LONGEST_URL_S, SignedUrl
from registry.kit.clock import now
from registry.kit.errors import ServiceError

T = TypeVar("T")
ABSENT = frozenset(("404", "NoSuchKey", "NotFound"))
_UNFIT = frozenset(("EntityTooSmall", "InvalidPart", "InvalidPartOrder"))
_AWAY = (
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    ProxyConnectionError,
    RetriesExceededError,
    S3DownloadFailedError,
)


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
            "its certificate is not trusted; set MODELYARD_OBJECTS__CA_BUNDLE", detail=str(error)
        ) from None
    except _AWAY as error:
        raise StoreUnavailable(_trouble(error), detail=str(error)) from None
    except BotoCoreError as error:
        raise StoreRefused(type(error).__name__, str(error)) from None


def _trouble(error: Exception) -> str:
    """Its kind, without the address that the SDK names."""
    if isinstance(error, ReadTimeoutError):
        return "it does not answer in time"
    if isinstance(error, ConnectTimeoutError):
        return "it does not take a connection in time"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConnectionRefusedError):
            return "it refuses the connection"
        if isinstance(cause, socket.gaierror):
            return "its host name is not known"
        cause = cause.__cause__ or cause.__context__
    is_reached = not isinstance(error, EndpointConnectionError | ProxyConnectionError)
    return "the connection broke" if is_reached else "it cannot be reached"


def _meaning(key: str, error: ClientError) -> ServiceError:
    found = error.response.get("Error", {})
    code, message = str(found.get("Code", "")), str(found.get("Message", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in ABSENT:
        return BlobNotFound(key)
    if code == "NoSuchUpload":
        return MultipartNotFound(key)
    if code in _UNFIT:
        return PartsRefused(key, f"{code}: {message}")
    if status >= 500 or status == 429:
        return StoreUnavailable(f"it answers {status} {code}")
    return StoreRefused(code, message)


class Connection:
    """The bucket's clients, and its keys below `prefix`."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._prefix = f"{bucket.prefix.strip('/')}/" if bucket.prefix.strip("/") else ""
        self._client = make_client(bucket)
        self._signer = (
            make_client(bucket, endpoint=bucket.public_endpoint)
            if bucket.public_endpoint
            else self._client
        )

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

    async def _signed(self, key: str, operation: str, expires_s: int, **more: Any) -> SignedUrl:
        lives = min(expires_s, LONGEST_URL_S)
        expires_at = now() + timedelta(seconds=lives)
        params = {**self._where(key), **more}
        url = await self._call(
            key,
            lambda: self._signer.generate_presigned_url(operation, Params=params, ExpiresIn=lives),
        )
        return SignedUrl(str(url), expires_at)
