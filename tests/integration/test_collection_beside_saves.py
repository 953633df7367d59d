"""Garbage is collected, at any age, over and over, while saves go to a bucket: none is touched."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from registry.collection.report import Report
from registry.collection.service import collect
from session.claims import CLAIMS
from support.garbage import heaps
from support.hosted import Hosted, hosted
from support.s3 import S3Server
from support.waiting import until

TOKENS = {"dtype": "int64", "data": [5, 6, 7]}
DATA = [{"tokens": TOKENS, "inputs": {"target_tokens": TOKENS}}]
KINDS = ("state", "sampler", "adapter")
SAVES = 24


@pytest.fixture(params=["sqlite", "postgresql"])
async def service(
    request: pytest.FixtureRequest, minio: S3Server, tiny: Path, tmp_path: Path
) -> AsyncIterator[Hosted]:
    bucket = minio.fresh_bucket()
    url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else None
    objects = {"bucket": bucket.name, "endpoint": bucket.endpoint}
    async with hosted(tmp_path / "home", model=tiny, database_url=url, objects=objects) as service:
        yield service


async def sweep(service: Hosted) -> Report:
    return await collect(service.database, service.store, CLAIMS, older_than=timedelta())


async def sweep_on(service: Hosted, reports: list[Report]) -> None:
    while True:
        reports.append(await sweep(service))


async def submit(client: httpx.AsyncClient, number: int, body: dict[str, Any]) -> str:
    form = {"number": number, "token": f"t{number}", "body": body}
    answer = await client.post("/v1/sessions/s1/operations", json=form)
    return str(answer.json()["id"])


async def test_a_collection_takes_nothing_that_a_save_is_writing(service: Hosted) -> None:
    reports: list[Report] = []
    async with service.client() as client:
        wish = {"base_model": "tiny", "name": "s1", "group": "g1"}
        await client.post("/v1/sessions", json=wish)
        sweeping = asyncio.create_task(sweep_on(service, reports))
        bodies = [{"type": "save", "kind": KINDS[n % len(KINDS)]} for n in range(SAVES)]
        asked = [await submit(client, n, body) for n, body in enumerate(bodies, 1)]
        for each in asked:
            ended = (await client.get(f"/v1/operations/{each}?wait=20")).json()
            assert ended["status"] == "completed", ended
        sweeping.cancel()
        with suppress(asyncio.CancelledError):
            await sweeping
        assert len(reports) > 3
        assert [heaps(each) for each in reports if each.garbage or each.damaged] == []
        await only_versions_are_left(service, client)


async def only_versions_are_left(service: Hosted, client: httpx.AsyncClient) -> None:
    await client.post("/v1/sessions/s1/stop")

    async def is_over() -> bool:
        return (await client.get("/v1/sessions/s1")).json()["ended_at"] is not None

    await until(is_over)
    await sweep(service)
    versions = (await client.get("/v1/groups/g1/versions?limit=200")).json()["data"]
    assert len(versions) == SAVES * 2 // 3
    for each in versions:
        place = f"/v1/groups/g1/versions/{each['version']}"
        assert (await client.post(f"{place}/verify")).json()["intact"]
    lying = await service.store.objects("")
    assert sum(each.size for each in lying) == sum(each["size"] for each in versions)
