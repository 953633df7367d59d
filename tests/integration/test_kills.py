"""kill -9 at random moments of saves to a bucket: no version is lost or half, and no byte is left
over once garbage is collected."""

import json
import os
import random
import signal
import subprocess
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from registry.artifacts.bucket import Bucket
from registry.artifacts.s3_client import make_client
from support.s3 import S3Server
from support.service import MODELYARD, Service, environment, modelyard, serving
from support.training import eventually, get

ROUNDS = int(os.environ.get("KILLS", "8"))
GROUP = "killed"
KINDS = ("state", "adapter", "merged", "sampler")
BURST = 7
LONGEST_S = 2.5
LOADED_S = 180.0  # what a worker's start takes at most on a machine that does much else
TOKENS = {"dtype": "int64", "data": [5, 6, 7]}
DATA = [{"tokens": TOKENS, "inputs": {"target_tokens": TOKENS}}]
STEP = ({"type": "forward_backward", "data": DATA}, {"type": "optim_step"})


class Yard:
    """One home on one bucket, its session `first`, and what was asked of it."""

    def __init__(self, home: Path, bucket: Bucket) -> None:
        self.home = home
        self.settings = {
            "MODELYARD_OBJECTS__ENDPOINT": bucket.endpoint or "",
            "MODELYARD_OBJECTS__BUCKET": bucket.name,
        }
        self.number = 0
        self.saves: list[str] = []
        self.random = random.Random(4)

    def ask(self, service: Service, body: dict[str, Any]) -> None:
        self.number += 1
        form = {"number": self.number, "token": f"t{self.number}", "body": body}
        post(service, "/v1/sessions/first/operations", form)

    def burst(self, service: Service) -> None:
        for body in STEP:
            self.ask(service, body)
        for _ in range(BURST):
            kind = self.random.choice(KINDS)
            self.ask(service, {"type": "save", "kind": kind})
            self.saves.append(kind)

    def collect(self) -> dict[str, Any]:
        done = self.run("gc", "--older-than", "0h", "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return modelyard(self.home, *words, settings=self.settings)

    def collector(self) -> subprocess.Popen[bytes]:
        """A collection beside the saves, with nothing to spare anything for its age."""
        return subprocess.Popen(
            [*MODELYARD, "gc", "--older-than", "0h"],
            env=environment(self.home, self.settings),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def post(service: Service, path: str, form: dict[str, Any]) -> Any:
    headers = {"Authorization": f"Bearer {service.api_key}"}
    answer = httpx.post(service.url + path, json=form, headers=headers, timeout=60, trust_env=False)
    answer.raise_for_status()
    return answer.json()


@pytest.fixture
def yard(minio: S3Server, tiny: Path, tmp_path: Path) -> tuple[Yard, Bucket]:
    bucket = minio.fresh_bucket()
    yard = Yard(tmp_path / "home", bucket)
    with serving(yard.home, settings=yard.settings) as service:
        assert yard.run("models", "add", "tiny", str(tiny)).returncode == 0
        lora = {"rank": 4, "seed": 7}
        form = {"base_model": "tiny", "name": "first", "group": GROUP, "lora": lora}
        post(service, "/v1/sessions", form)
        eventually(partial(runs, service, "first"), seconds=LOADED_S)
    return yard, bucket


def a_round(yard: Yard, number: int) -> None:
    """Ask, wait for a random moment, and kill the worker or all, and a collection with them."""
    with serving(yard.home, settings=yard.settings) as service:
        eventually(partial(is_live, service), seconds=LOADED_S)
        yard.burst(service)
        collector = yard.collector() if number % 3 == 0 else None
        time.sleep(yard.random.uniform(0, LONGEST_S))
        if yard.random.random() < 0.5:
            service.kill_worker()
            eventually(partial(is_live, service), seconds=LOADED_S)
            time.sleep(yard.random.uniform(0, LONGEST_S))
        service.process.send_signal(signal.SIGKILL)
        service.process.wait()
        if collector is not None:
            collector.kill()
            collector.wait()


def runs(service: Service, session: str) -> bool:
    return bool(get(service, f"/v1/sessions/{session}")["status"] == "running")


def is_live(service: Service) -> bool:
    return not get(service, "/v1/sessions/first")["restoring"]


def has_ended(service: Service, session: str) -> bool:
    return get(service, f"/v1/sessions/{session}")["ended_at"] is not None


def versions(service: Service) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = get(service, f"/v1/groups/{GROUP}/versions", limit=200)["data"]
    return found


@pytest.mark.timeout(LOADED_S + 60 * ROUNDS)
def test_kills_in_the_middle_of_saves_lose_no_version_and_leave_no_byte(
    yard: tuple[Yard, Bucket],
) -> None:
    asked, bucket = yard
    for number in range(ROUNDS):
        a_round(asked, number)
    wanted = [kind for kind in asked.saves if kind != "sampler"]
    with serving(asked.home, settings=asked.settings) as service:
        eventually(lambda: len(versions(service)) == len(wanted), seconds=LOADED_S)
        listed = versions(service)
        assert [each["version"] for each in listed] == list(range(len(wanted), 0, -1))
        assert [each["kind"] for each in reversed(listed)] == wanted
        for each in listed:
            place = f"/v1/groups/{GROUP}/versions/{each['version']}"
            assert post(service, f"{place}/verify", {})["intact"], each["ref"]
        latest = get(service, f"/v1/groups/{GROUP}/latest", kind="state")["ref"]
        again = {"from_version": latest, "with_optimizer": True, "name": "again"}
        post(service, "/v1/sessions", again)
        eventually(partial(runs, service, "again"), seconds=LOADED_S)
        for name in ("first", "again"):
            post(service, f"/v1/sessions/{name}/stop", {})
            eventually(partial(has_ended, service, name), seconds=LOADED_S)
    found = asked.collect()
    assert (found["damaged"], found["foreign"]["objects"]) == ([], 0)
    with closing(make_client(bucket)) as s3:
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket.name)
        lying = [each["Size"] for page in pages for each in page["Contents"]]
    assert sum(lying) == sum(each["size"] for each in listed)
    print(f"{ROUNDS} rounds, {len(wanted)} versions; gc freed {found['garbage']}")  # noqa: T201
