"""Directories from outside, and pushing them as REST is documented, without our client."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from exporters import directory
from registry.artifacts.manifest import hash_file
from support.hosted import Hosted, hosted
from support.model_files import change_json, random_adapter
from support.s3 import S3Server
from support.tiny import tiny_model

MIB = 2**20


class Outside:
    """A PEFT adapter on the base `tiny`, with a text file that is large enough for many parts."""

    def __init__(self, folder: Path, *, notes: int = 12 * MIB) -> None:
        self.base = tiny_model(folder / "tiny")
        self.path = random_adapter(self.base, folder / "outside", targets=("q_proj", "lm_head"))
        change_json(self.path / "adapter_config.json", base_model_name_or_path="tiny")
        if notes:
            (self.path / "notes.txt").write_bytes(os.urandom(notes // 2).hex().encode())

    @property
    def files(self) -> Mapping[str, Path]:
        return directory.recognise(self.path).files

    def request(self, **changes: Any) -> dict[str, Any]:
        """What begins its upload."""
        files = [
            {"path": name, "size": path.stat().st_size, "sha256": hash_file(path)}
            for name, path in self.files.items()
        ]
        said = {"token": "t1", "kind": "adapter", "base_model": "tiny", "files": files}
        return {**said, **changes}

    def part(self, file: Mapping[str, Any], number: int) -> bytes:
        start = (number - 1) * file["part_size"]
        return self.files[file["path"]].read_bytes()[start : start + file["part_size"]]


@asynccontextmanager
async def taking(
    home: Path,
    outside: Outside,
    server: S3Server | None = None,
    *,
    database_url: str | None = None,
    **objects: Any,
) -> AsyncIterator[Hosted]:
    """The whole service, on a directory or on a bucket of `server`."""
    settings: dict[str, Any] = {"database_url": database_url}
    if server is not None:
        bucket = server.fresh_bucket()
        place = {"endpoint": server.endpoint, "bucket": bucket.name, "part_bytes": 5 * MIB}
        settings["objects"] = {**place, **objects}
    async with hosted(home, model=outside.base, **settings) as service:
        yield service


async def begin(
    client: httpx.AsyncClient, outside: Outside, group: str = "facts", **changes: Any
) -> dict[str, Any]:
    answer = await client.post(f"/v1/groups/{group}/uploads", json=outside.request(**changes))
    assert answer.status_code in (200, 201), answer.text
    found: dict[str, Any] = answer.json()
    return found


def missing(plan: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    return [(file, part) for file in plan["files"] for part in file["missing"]]


async def put(client: httpx.AsyncClient, url: str, data: bytes) -> httpx.Response:
    """Past the service where the address is the store's own."""
    if url.startswith("/"):
        return await client.put(url, content=data)
    async with httpx.AsyncClient(trust_env=False, timeout=60) as plain:
        return await plain.put(url, content=data)


async def send(client: httpx.AsyncClient, outside: Outside, plan: Mapping[str, Any]) -> None:
    for file, part in missing(plan):
        answer = await put(client, part["url"], outside.part(file, part["number"]))
        assert answer.is_success, answer.text


async def commit(client: httpx.AsyncClient, plan: Mapping[str, Any]) -> httpx.Response:
    """Asked until it is over."""
    while True:
        place = f"/v1/groups/{plan['group']}/uploads/{plan['id']}/commit"
        answer = await client.post(place)
        if answer.status_code != 202:
            return answer
