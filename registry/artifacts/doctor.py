"""Tries a store before anybody relies on it: what works, what does not, which settings it needs.

Whatever it writes lies in a folder of its own, and goes again.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from pathlib import Path
from secrets import token_hex
from shutil import disk_usage
from typing import Any

import httpx

from registry.artifacts.bucket import Bucket
from registry.artifacts.errors import StoreRefused, StoreUnavailable
from registry.artifacts.local import LocalBlobStore
from registry.artifacts.parts import MIB, SMALLEST_PART
from registry.artifacts.s3_client import make_client, translated, trusted_bundle
from registry.kit.clock import now
from registry.kit.errors import ServiceError

MOST_SKEW = timedelta(minutes=5)
"""S3 refuses signatures that are 15 minutes off."""
_DATA = b"modelyard doctor " * 64
_MOST_NAMED = 5
_WRONG_SHA256 = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="


class Verdict(StrEnum):
    works = "works"
    lacks = "lacks"
    """It is not there, and Modelyard does without."""
    fails = "fails"


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    verdict: Verdict
    detail: str = ""


class Lacking(Exception):
    """What a probe raises about something that Modelyard does without."""


def finding(check: str, probe: Callable[[], str]) -> Finding:
    """What the probe says works; what it raises does not."""
    try:
        return Finding(check, Verdict.works, probe())
    except Lacking as lacking:
        return Finding(check, Verdict.lacks, str(lacking))
    except (ServiceError, OSError) as error:
        return Finding(check, Verdict.fails, str(error))


def examine_folder(path: Path) -> list[Finding]:
    """The embedded store."""

    async def round_trip() -> str:
        store, folder = LocalBlobStore(path), f"doctor-{token_hex(8)}/"
        try:
            await store.put_bytes(f"{folder}a", _DATA)
            if await store.read(f"{folder}a") != _DATA:
                raise StoreRefused("damaged", "other bytes came back than were put")
        finally:
            await store.delete_folder(folder)
        return f"{path}, {disk_usage(path).free / 2**30:.1f} GiB free"

    return [finding("objects: put, get, delete", lambda: asyncio.run(round_trip()))]


def examine_bucket(bucket: Bucket) -> tuple[list[Finding], Bucket]:
    """And the bucket with the settings that it works with."""
    found, bucket = _settled(replace(bucket, attempts=1))
    if any(each.verdict is Verdict.fails for each in found):
        return found, bucket
    probes = _Probes(bucket)
    try:
        found += probes.findings()
    finally:
        probes.close()
    return found, bucket


def _settled(bucket: Bucket) -> tuple[list[Finding], Bucket]:
    """First the way there: what comes later would only repeat what is wrong with it."""
    with translated(""):
        client = make_client(bucket)
        endpoint = bucket.endpoint or str(client.meta.endpoint_url)
        client.close()
    found = list(_way(bucket, endpoint))
    if any(each.verdict is Verdict.fails for each in found):
        return found, bucket
    other = "virtual" if bucket.addressing == "path" else "path"
    for check, setting, choices, attempt in (
        ("addressing", "addressing", (bucket.addressing, other), _list),
        ("checksums", "checksums", (bucket.checksums, _other_mode(bucket)), _put_and_delete),
    ):
        one, bucket = _first_that_works(bucket, f"objects: {check}", setting, choices, attempt)
        found.append(one)
        if one.verdict is Verdict.fails:
            return found, bucket
    region = finding("objects: region", lambda: _region(bucket))
    if region.verdict is Verdict.works and region.detail != bucket.region:
        said = f"the bucket is in {region.detail}, and {bucket.region} is set"
        bucket = replace(bucket, region=region.detail)
        region = replace(region, verdict=Verdict.lacks, detail=said)
    return [*found, region], bucket


def _region(bucket: Bucket) -> str:
    """The SDK follows a bucket to its region by itself; a signed URL does not."""
    client = make_client(bucket)
    try:
        with translated(bucket.name):
            found = client.get_bucket_location(Bucket=bucket.name)["LocationConstraint"]
    except StoreRefused as refused:
        raise Lacking(f"it does not say: {refused.code}") from None
    finally:
        client.close()
    return str(found or "us-east-1")


def _other_mode(bucket: Bucket) -> str:
    return "when_supported" if bucket.checksums == "when_required" else "when_required"


def _first_that_works(
    bucket: Bucket,
    check: str,
    setting: str,
    choices: tuple[str, ...],
    attempt: Callable[[Bucket], None],
) -> tuple[Finding, Bucket]:
    problems = []
    for choice in choices:
        chosen = replace(bucket, **{setting: choice})  # type: ignore[arg-type]  # one of its values
        try:
            attempt(chosen)
        except ServiceError as error:
            problems.append(str(error))
            continue
        if problems:
            said = f"{choice} works, and what is set does not: {problems[0]}"
            return Finding(check, Verdict.lacks, said), chosen
        return Finding(check, Verdict.works, choice), chosen
    return Finding(check, Verdict.fails, "; ".join(dict.fromkeys(problems))), bucket


def _way(bucket: Bucket, endpoint: str) -> Iterator[Finding]:
    """Reachable, trusted, and on time. No signature takes part, which a wrong clock would spoil."""
    check = f"objects: reach {endpoint}"
    try:
        answer = httpx.get(endpoint, verify=_trusted(bucket), timeout=10)
    except (OSError, httpx.HTTPError, httpx.InvalidURL) as error:
        hint = ""
        if "certificate" in str(error).lower():
            hint = "; set MODELYARD_OBJECTS__CA_BUNDLE to the authority's certificate"
        yield Finding(check, Verdict.fails, f"{error or type(error).__name__}{hint}")
        return
    yield Finding(check, Verdict.works, f"HTTP {answer.status_code} without a signature, as it may")
    yield finding("objects: certificate", lambda: _certificate(bucket, endpoint))
    if date := answer.headers.get("date"):
        yield finding("objects: clock", lambda: check_clock(_moment(date)))


def _moment(date: str) -> datetime:
    try:
        return parsedate_to_datetime(date).replace(tzinfo=UTC)
    except ValueError:
        raise Lacking(f"the server's date is not one: {date}") from None


def _trusted(bucket: Bucket) -> ssl.SSLContext | bool:
    if not bucket.verify:
        return False
    bundle = trusted_bundle(bucket)
    return ssl.create_default_context(cafile=bundle) if bundle else httpx.create_ssl_context()


def _certificate(bucket: Bucket, endpoint: str) -> str:
    if not endpoint.startswith("https:"):
        raise Lacking("plain HTTP: nothing is encrypted on the way")
    if not bucket.verify:
        raise Lacking("not compared, as MODELYARD_OBJECTS__VERIFY is false")
    return f"trusted by {trusted_bundle(bucket) or 'what is installed'}"


def check_clock(theirs: datetime) -> str:
    """`theirs` was read a moment ago."""
    skew = now() - theirs
    words = f"this machine is {abs(skew.total_seconds()):.0f} s off"
    if abs(skew) > MOST_SKEW:
        raise StoreUnavailable(f"{words}; set the clocks, or every signature will be refused")
    return words


def _list(bucket: Bucket) -> None:
    client = make_client(bucket)
    with translated(bucket.name):
        client.list_objects_v2(Bucket=bucket.name, MaxKeys=1)
    client.close()


def _put_and_delete(bucket: Bucket) -> None:
    client = make_client(bucket)
    where = {"Bucket": bucket.name, "Key": f"{_folder(bucket)}checksums"}
    with translated(bucket.name):
        client.put_object(**where, Body=_DATA)
        client.delete_object(**where)
    client.close()


def _folder(bucket: Bucket) -> str:
    prefix = bucket.prefix.strip("/")
    return f"{prefix}/doctor-{token_hex(8)}/" if prefix else f"doctor-{token_hex(8)}/"


class _Probes:
    """Each does one thing and says what it saw."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._client = make_client(bucket)
        self._folder = _folder(bucket)

    def findings(self) -> list[Finding]:
        probes: tuple[tuple[str, Callable[[], str]], ...] = (
            ("put", self._put),
            ("get", self._get),
            ("range", self._range),
            ("multipart", self._multipart),
            ("list multipart", self._list_multipart),
            ("conditional put", self._conditional_put),
            ("wrong checksum", self._wrong_checksum),
            ("signed URL", self._signed_url),
            ("list and delete", self._delete),
        )
        return [finding(f"objects: {name}", self._translated(probe)) for name, probe in probes]

    def close(self) -> None:
        self._client.close()

    def _translated(self, probe: Callable[[], str]) -> Callable[[], str]:
        def run() -> str:
            with translated(self._folder):
                return probe()

        return run

    def _where(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket.name, "Key": self._folder + name}

    def _put(self) -> str:
        self._client.put_object(**self._where("a"), Body=_DATA)
        return f"{len(_DATA)} bytes"

    def _get(self) -> str:
        _same(self._client.get_object(**self._where("a"))["Body"].read(), _DATA)
        return "the same bytes"

    def _range(self) -> str:
        answer = self._client.get_object(**self._where("a"), Range="bytes=17-33")
        _same(answer["Body"].read(), _DATA[17:34])
        return "17 bytes from within"

    def _multipart(self) -> str:
        where, parts = self._where("parts"), (b"m" * SMALLEST_PART, b"y")
        upload = self._client.create_multipart_upload(**where)["UploadId"]
        tags = [
            self._client.upload_part(**where, UploadId=upload, PartNumber=n, Body=part)["ETag"]
            for n, part in enumerate(parts, 1)
        ]
        listed = [{"PartNumber": n, "ETag": tag} for n, tag in enumerate(tags, 1)]
        self._client.complete_multipart_upload(
            **where, UploadId=upload, MultipartUpload={"Parts": listed}
        )
        size = self._client.head_object(**where)["ContentLength"]
        if size != SMALLEST_PART + 1:
            raise StoreRefused("damaged", f"two parts made {size} bytes")
        return f"two parts, {size / MIB:.0f} MiB"

    def _list_multipart(self) -> str:
        where = self._where("unfinished")
        upload = self._client.create_multipart_upload(**where)["UploadId"]
        try:
            listed = [self._uploads(prefix) for prefix in (self._folder, where["Key"])]
        finally:
            self._client.abort_multipart_upload(**where, UploadId=upload)
        below, exact = ([each["UploadId"] for each in uploads] for uploads in listed)
        if upload not in below:
            how = "only under their exact key" if upload in exact else "not at all"
            raise Lacking(
                f"unfinished uploads are listed {how}: let the store end old ones by itself"
            )
        return _strays(self._uploads(self._folder.rpartition("doctor-")[0]))

    def _uploads(self, prefix: str) -> list[dict[str, Any]]:
        pages = self._client.get_paginator("list_multipart_uploads").paginate(
            Bucket=self._bucket.name, Prefix=prefix
        )
        return [each for page in pages for each in page.get("Uploads", ())]

    def _conditional_put(self) -> str:
        try:
            with translated(""):
                self._client.put_object(**self._where("a"), Body=_DATA, IfNoneMatch="*")
        except StoreRefused as refused:
            if refused.code in ("PreconditionFailed", "412"):
                return "an object is not put twice"
            raise Lacking(f"{refused.code}; nothing of Modelyard's rests on it") from None
        raise Lacking("If-None-Match is ignored; nothing of Modelyard's rests on it")

    def _wrong_checksum(self) -> str:
        try:
            with translated(""):
                self._client.put_object(
                    **self._where("wrong"), Body=_DATA, ChecksumSHA256=_WRONG_SHA256
                )
        except StoreRefused as refused:
            return f"refused: {refused.code}"
        raise Lacking("stored all the same; Modelyard compares SHA-256 by itself")

    def _signed_url(self) -> str:
        public = self._bucket.public_endpoint
        signer = make_client(self._bucket, endpoint=public)
        url = signer.generate_presigned_url("get_object", Params=self._where("a"), ExpiresIn=60)
        signer.close()
        host = httpx.URL(url).netloc.decode()
        try:
            answer = httpx.get(url, verify=_trusted(self._bucket), timeout=10)
        except httpx.HTTPError as error:
            if public:
                raise Lacking(f"{host} cannot be reached from here: {error}") from None
            raise StoreUnavailable(f"{host}: {error}") from None
        if answer.status_code != 200:
            raise StoreRefused(str(answer.status_code), f"{host} does not take our signature")
        _same(answer.content, _DATA)
        return f"{host} answers from here"

    def _delete(self) -> str:
        listed = self._keys()
        self._client.delete_objects(
            Bucket=self._bucket.name, Delete={"Objects": [{"Key": key} for key in listed]}
        )
        if kept := self._keys():
            raise StoreRefused("kept", f"{', '.join(kept)} are still there")
        return f"{len(listed)} objects"

    def _keys(self) -> list[str]:
        answer = self._client.list_objects_v2(Bucket=self._bucket.name, Prefix=self._folder)
        return [each["Key"] for each in answer.get("Contents", ())]


def _strays(uploads: list[dict[str, Any]]) -> str:
    """Parts that cost space, or are on their way this moment: the oldest by name."""
    if not uploads:
        return "no unfinished uploads"
    uploads.sort(key=lambda each: each["Initiated"])
    named = [f"{each['Key']} ({each['Initiated']:%Y-%m-%d})" for each in uploads[:_MOST_NAMED]]
    more = ", and more" if len(uploads) > _MOST_NAMED else ""
    return f"{len(uploads)} unfinished, see modelyard gc: {', '.join(named)}{more}"


def _same(found: bytes, wanted: bytes) -> None:
    if found != wanted:
        raise StoreRefused("damaged", f"{len(found)} other bytes than were put")
