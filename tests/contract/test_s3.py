"""What only a bucket promises: real servers, and a network between that does its worst."""

import os
import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from registry.artifacts.errors import StoreRefused, StoreUnavailable
from registry.artifacts.s3 import MIB, S3BlobStore
from support.faulty import Proxied, proxy
from support.s3 import S3Server

SIZE = 12 * MIB + 5


@pytest.fixture(params=["minio", "versitygw"])
def server(request: pytest.FixtureRequest) -> S3Server:
    found: S3Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(SIZE))
    return path


@contextmanager
def behind(server: S3Server, fault: object, **given: object) -> Iterator[S3BlobStore]:
    """A store whose only way to the server leads through the fault."""
    bucket = server.fresh_bucket(part_bytes=5 * MIB, **{"attempts": 5, **given})
    with (
        proxy(server.endpoint, fault) as url,  # type: ignore[arg-type]  # a test's own function
        closing(S3BlobStore(replace(bucket, endpoint=url))) as store,
    ):
        yield store


class Once:
    """A fault that happens to the first request that fits."""

    def __init__(self, fits: object, happens: object) -> None:
        self.fits, self.happens, self.left = fits, happens, 1

    def __call__(self, request: Proxied) -> bool:
        if not self.left or not self.fits(request):  # type: ignore[operator]
            return False
        self.left -= 1
        self.happens(request)  # type: ignore[operator]
        return True
