"""Real S3 servers that live as long as the tests, and a fresh bucket for each of them."""

import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from registry.artifacts.bucket import Bucket
from registry.artifacts.s3_client import make_client
from support.postgres import free_port

ACCESS_KEY, SECRET_KEY = "modelyard-tests", "modelyard-tests-secret"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    # nothing of whoever runs the tests takes part
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}
_START_S = 60.0
_BOUNDS = {"GOMAXPROCS": "2", "GOMEMLIMIT": "400MiB"}


class StoreMissing(Exception):
    """Why there is no server."""


@dataclass(frozen=True, slots=True)
class S3Server:
    endpoint: str

    def fresh_bucket(self, **given: Any) -> Bucket:
        """An empty one of its own; it goes with the server."""
        name = f"test-{uuid.uuid4().hex}"
        bucket = Bucket(**{"name": name, "endpoint": self.endpoint, "attempts": 2, **given})
        client = make_client(Bucket(name=name, endpoint=self.endpoint))
        client.create_bucket(Bucket=name)
        client.close()
        return bucket


@contextmanager
def credentials() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield


@contextmanager
def minio() -> Iterator[S3Server]:
    def command(program: Path, folder: Path, address: str) -> list[str]:
        return [
            str(program),
            "server",
            str(folder / "data"),
            "--address",
            address,
            "--console-address",
            f"127.0.0.1:{free_port()}",
        ]

    names = {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY}
    quiet = {"MINIO_BROWSER": "off", "MINIO_UPDATE": "off"}
    with _running("minio", "MINIO_BIN", command, {**names, **quiet}) as server:
        yield server


@contextmanager
def versitygw() -> Iterator[S3Server]:
    """A second server of another origin, so that nothing rests on one's habits."""

    def command(program: Path, folder: Path, address: str) -> list[str]:
        for name in ("data", "sidecar"):
            (folder / name).mkdir()
        keys = ["--access", ACCESS_KEY, "--secret", SECRET_KEY]
        posix = ["posix", "--sidecar", str(folder / "sidecar"), str(folder / "data")]
        return [str(program), *keys, "--port", address, "--quiet", *posix]

    with _running("versitygw", "VERSITYGW_BIN", command, {}) as server:
        yield server


@contextmanager
def _running(
    name: str,
    variable: str,
    command: Callable[[Path, Path, str], list[str]],
    environment: Mapping[str, str],
) -> Iterator[S3Server]:
    program = _program(name, variable)
    folder = Path(tempfile.mkdtemp(prefix=f"modelyard-{name}-"))
    address = f"127.0.0.1:{free_port()}"
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MINIO_")}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command(program, folder, address),
            env={**kept, **_BOUNDS, **environment, "HOME": str(folder)},
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    try:
        _await(f"http://{address}", process, folder / "log")
        yield S3Server(f"http://{address}")
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder)


def _program(name: str, variable: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    built = cache / "modelyard" / "bin" / name
    found = os.environ.get(variable) or shutil.which(name) or built
    if not Path(found).is_file():
        raise StoreMissing(
            f"{name} is not built; run: tests/support/build_stores.sh .venv/bin/python"
        )
    return Path(found)


def _await(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """An answer of any kind: without a signature it is a refusal."""
    end = time.monotonic() + _START_S
    while True:
        try:
            if httpx.get(url, timeout=2).status_code < 500:
                return
        except httpx.HTTPError:
            pass
        if process.poll() is not None or time.monotonic() > end:
            raise StoreMissing(f"it did not start: {log.read_text()[-1000:]}")
        time.sleep(0.05)
