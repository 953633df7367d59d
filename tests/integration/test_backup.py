"""A backup made while saves run, restored elsewhere: all that it lists is whole, and goes on."""

import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import modelyard
from registry.artifacts.s3_client import make_client
from support.postgres import fresh_postgres
from support.s3 import S3Server
from support.service import Service, serving
from support.service import modelyard as command
from support.training import batch, connect, eventually, get, step

LONG = (400,) * 20  # tokens enough for a body that lies in the object store


@dataclass
class Place:
    """Where a service keeps things, and how they are copied to an empty place like it."""

    settings: Mapping[str, str]
    restored: Mapping[str, str]
    copy_database: Callable[[Path, Path], None]
    copy_objects: Callable[[Path, Path], None]


def _embedded() -> Iterator[Place]:
    def database(home: Path, into: Path) -> None:
        done = command(home, "db", "backup", str(into / "modelyard.db"))
        assert done.returncode == 0, done.stderr

    def objects(home: Path, into: Path) -> None:
        ignored = shutil.ignore_patterns(".incoming")
        shutil.copytree(home / "objects", into / "objects", ignore=ignored)

    yield Place({}, {}, database, objects)


def _for_a_team(request: pytest.FixtureRequest) -> Iterator[Place]:
    minio: S3Server = request.getfixturevalue("minio")
    server: str = request.getfixturevalue("postgres")
    used, other = minio.fresh_bucket(), minio.fresh_bucket()
    with fresh_postgres(server) as url, fresh_postgres(server) as new:

        def database(_: Path, into: Path) -> None:
            dump = into / "modelyard.dump"
            _run("pg_dump", "--format=custom", f"--file={dump}", url)
            _run("pg_restore", "--no-owner", f"--dbname={new}", str(dump))

        def objects(_: Path, __: Path) -> None:
            with closing(make_client(used)) as s3:
                for page in s3.get_paginator("list_objects_v2").paginate(Bucket=used.name):
                    for found in page.get("Contents", []):
                        source = {"Bucket": used.name, "Key": found["Key"]}
                        s3.copy_object(Bucket=other.name, Key=found["Key"], CopySource=source)

        def settings(database: str, bucket: str) -> dict[str, str]:
            objects = {"BUCKET": bucket, "ENDPOINT": minio.endpoint}
            named = {f"MODELYARD_OBJECTS__{key}": value for key, value in objects.items()}
            return {**named, "MODELYARD_DATABASE__URL": database}

        yield Place(settings(url, used.name), settings(new, other.name), database, objects)


def _run(program: str, *arguments: str) -> None:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(params=["a directory", "a team"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    yield from _embedded() if request.param == "a directory" else _for_a_team(request)


@contextmanager
def saving(training: modelyard.TrainingClient, service: Service) -> Iterator[None]:
    """Save after save, as long as the block runs; two are there when it begins."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            training.save_state().result()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        eventually(lambda: len(versions(service)) >= 2)
        yield
    finally:
        stop.set()
        thread.join()


def versions(service: Service) -> list[dict[str, Any]]:
    groups = [group["name"] for group in get(service, "/v1/groups")["data"]]
    found: list[dict[str, Any]] = get(service, "/v1/groups/g/versions")["data"] if groups else []
    return found


def test_what_was_copied_while_saves_ran_is_whole_and_its_session_goes_on(
    place: Place, tiny: Path, tmp_path: Path
) -> None:
    home, copy = tmp_path / "home", tmp_path / "copy"
    copy.mkdir()
    with serving(home, settings=place.settings) as service:
        added = command(home, "models", "add", "tiny", str(tiny), settings=place.settings)
        assert added.returncode == 0, added.stderr
        with connect(service, "g") as client:
            training = client.create_lora_training_client("tiny", rank=4, seed=7, name="mine")
            step(training, batch(1, LONG))
            with saving(training, service):
                place.copy_database(home, copy)
                place.copy_objects(home, copy)
            shutil.copy(home / "credentials", copy)
            made, expected = len(versions(service)), training.forward(batch(2)).result().loss
    copy.chmod(0o700)
    with serving(copy, settings=place.restored) as service:
        refs = [found["ref"] for found in versions(service)]
        assert 2 <= len(refs) <= made
        for ref in refs:
            done = command(copy, "verify", ref, settings=place.restored)
            assert done.returncode == 0, done.stderr
        with connect(service, "g") as client:
            training = client.get_training_client("mine")
            assert np.isclose(training.forward(batch(2)).result().loss, expected)
            last = training.save_state().result().version
            training.stop()
        numbers = [found["version"] for found in versions(service)]
        assert numbers == list(range(last, 0, -1))
