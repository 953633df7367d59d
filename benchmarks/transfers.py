"""One large file to MinIO and back.

MinIO runs on this machine. All take turns, in another order each time; medians.

Ours makes and compares the file's SHA-256; boto3 and rclone make none.
"""

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import boto3

from benchmarks.big_file import write_big_file
from benchmarks.rows import Row
from registry.artifacts.bucket import Bucket
from registry.artifacts.manifest import FileEntry
from registry.artifacts.s3 import S3BlobStore
from registry.artifacts.transfer import materialize, upload
from support import s3

MIB = 2**20
SIZE = 512 * MIB
TURNS = 5
NAME = "big.safetensors"


@dataclass(frozen=True, slots=True)
class Mover:
    """`down` is given a folder that does not exist, and makes it."""

    name: str
    up: Callable[[], object]
    down: Callable[[Path], object]


def run() -> Iterator[Row]:
    with s3.credentials(), s3.minio() as server, TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        source.mkdir()
        write_big_file(source / NAME, SIZE)
        bucket = server.fresh_bucket()
        with closing(S3BlobStore(bucket)) as store:
            movers = [_boto3(bucket, source), _ours(store, source), *_rclone(bucket, source)]
            times = _measured(movers, Path(folder) / "target")
    speeds = {key: SIZE / MIB / median(taken) for key, taken in times.items()}
    for way in ("up", "down"):
        for peer in ("boto3", "rclone"):
            theirs = speeds.get((peer, way))
            note = "" if theirs else "not installed here"
            yield Row(f"512 MiB {way}", speeds["ours", way], "MiB/s", peer, theirs, note=note)


def _measured(movers: list[Mover], target: Path) -> dict[tuple[str, str], list[float]]:
    """In another order each turn, so that nobody always comes first."""
    times: dict[tuple[str, str], list[float]] = {}
    for turn in range(TURNS):
        for mover in movers[turn % len(movers) :] + movers[: turn % len(movers)]:
            times.setdefault((mover.name, "up"), []).append(_timed(mover.up))
            times.setdefault((mover.name, "down"), []).append(
                _timed(lambda mover=mover: mover.down(target))  # type: ignore[misc]  # its default
            )
            if sum(path.stat().st_size for path in target.iterdir()) != SIZE:
                raise RuntimeError(f"{mover.name} brought another file")
            shutil.rmtree(target)
    return times


def _timed(work: Callable[[], object]) -> float:
    os.sync()  # what the one before has still to write is not ours to wait for
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _boto3(bucket: Bucket, source: Path) -> Mover:
    client: Any = boto3.client("s3", endpoint_url=bucket.endpoint, region_name=bucket.region)

    def down(target: Path) -> None:
        target.mkdir()
        client.download_file(bucket.name, "boto3", str(target / NAME))

    up = lambda: client.upload_file(str(source / NAME), bucket.name, "boto3")  # noqa: E731
    return Mover("boto3", up, down)


def _ours(store: S3BlobStore, source: Path) -> Mover:
    sent: list[FileEntry] = []

    def up() -> None:
        sent[:] = asyncio.run(upload(store, "ours/", source, [NAME]))

    return Mover("ours", up, lambda target: asyncio.run(materialize(store, "ours/", sent, target)))


def _rclone(bucket: Bucket, source: Path) -> Iterator[Mover]:
    if shutil.which("rclone") is None:
        return
    words: Mapping[str, str] = {
        "TYPE": "s3",
        "PROVIDER": "Minio",
        "ENDPOINT": str(bucket.endpoint),
        "ACCESS_KEY_ID": s3.ACCESS_KEY,
        "SECRET_ACCESS_KEY": s3.SECRET_KEY,
    }
    environment = {
        **os.environ,
        **{f"RCLONE_CONFIG_M_{name}": value for name, value in words.items()},
    }

    def copy(from_: str, to: str) -> None:
        command = ["rclone", "copy", "--config", os.devnull, "--ignore-times", from_, to]
        subprocess.run(command, env=environment, check=True)

    place = f"m:{bucket.name}/rclone"
    yield Mover("rclone", lambda: copy(str(source), place), lambda target: copy(place, str(target)))
