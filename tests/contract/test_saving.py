"""A save is written beside the training that goes on, and published at its place in the log."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from registry.artifacts.local import LocalBlobStore
from session import wire
from session.worker.context import Context
from session.worker.process import Worker
from session.worker.server import create_channel
from support.engines import FakeEngine
from support.hosted import Hosted, listening
from support.waiting import until as eventually

TOKENS = {"dtype": "int64", "data": [5, 6, 7]}
FORWARD_BACKWARD = {
    "type": "forward_backward",
    "data": [{"tokens": TOKENS, "inputs": {"target_tokens": TOKENS}}],
}
STEP = {"type": "optim_step"}
SAVE = {"type": "save", "kind": "adapter"}


class Slow(LocalBlobStore):
    """What is put first is held until `open` is set; the rest goes by at once."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.open = asyncio.Event()
        self.held: str | None = None
        self.passed: list[str] = []

    async def put_file(self, key: str, path: Path, **options: Any) -> None:
        place = key.partition("checkpoints/")[0]
        self.held = self.held or place
        if place == self.held:
            await self.open.wait()
        await super().put_file(key, path, **options)
        self.passed.append(place)


@asynccontextmanager
async def slowly(service: Hosted, tmp_path: Path) -> AsyncIterator[Slow]:
    """Another worker takes over, whose store is slow."""
    await service.worker.close()
    store = Slow(tmp_path / "home" / "objects")
    context = Context("wrk_2", service.database, store, FakeEngine(), tmp_path / "scratch")
    worker = Worker(context)
    async with listening(create_channel(worker, secret="hush")) as channel:
        await worker.start(address=channel, secret="hush")
        yield store
        store.open.set()
        await worker.close()


async def submit(
    client: httpx.AsyncClient, number: int, body: Any, *, wait: int = 0, **headers: str
) -> httpx.Response:
    form = {"number": number, "token": f"t{number}", "body": body}
    path = f"/v1/sessions/s1/operations?wait={wait}"
    return (await client.post(path, json=form, headers=headers)).raise_for_status()


async def ended(client: httpx.AsyncClient, submitted: httpx.Response) -> dict[str, Any]:
    path = f"/v1/operations/{submitted.json()['id']}?wait=20"
    found: dict[str, Any] = (await client.get(path)).json()
    return found


async def numbers(client: httpx.AsyncClient) -> list[int]:
    listed = (await client.get("/v1/groups/g1/versions")).json()["data"]
    return [version["version"] for version in listed]


async def test_training_goes_on_while_a_save_is_uploaded(
    service: Hosted, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    async with slowly(service, tmp_path) as store:
        saved = await submit(client, 1, SAVE)
        await submit(client, 2, FORWARD_BACKWARD)
        stepped = await submit(client, 3, STEP)
        assert (await ended(client, stepped))["status"] == "completed"
        assert not store.passed
        shown = await client.get(f"/v1/operations/{saved.json()['id']}")
        assert shown.json()["status"] == "running"
        store.open.set()
        assert (await ended(client, saved))["result"]["version"] == "g1@1"
        assert (await client.get("/v1/groups/g1/versions/1")).json()["step"] == 0


async def test_a_save_that_is_written_first_is_published_behind_those_before_it(
    service: Hosted, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    async with slowly(service, tmp_path) as store:
        saves = [await submit(client, 1, SAVE)]
        await eventually(lambda: store.held is not None)
        saves.append(await submit(client, 2, SAVE))
        await eventually(lambda: len(store.passed) > 0)
        after = await submit(client, 3, FORWARD_BACKWARD)
        assert (await ended(client, after))["status"] == "completed"
        assert await numbers(client) == []
        store.open.set()
        results = [(await ended(client, save))["result"]["version"] for save in saves]
        assert results == ["g1@1", "g1@2"]
        second = (await client.get("/v1/groups/g1/versions/2")).json()
        assert (second["parent"], second["operation"]) == ("g1@1", 2)


async def test_an_answer_that_is_followed_says_what_was_stored_and_what_it_came_to(
    client: httpx.AsyncClient,
) -> None:
    answer = await submit(client, 1, FORWARD_BACKWARD, wait=20, Accept=wire.FRAMES)
    assert answer.status_code == 202
    body = bytearray(answer.content)
    stored, found = (wire.unpack(wire.unframe(body) or b"", wire.Operation) for _ in range(2))
    assert (stored.status, found.status, found.id) == ("pending", "completed", stored.id)
    assert found == wire.unpack(
        (await client.get(f"/v1/operations/{found.id}", headers={"Accept": wire.MEDIA})).content,
        wire.Operation,
    )
    assert not body


async def test_an_operation_that_failed_says_so_where_it_is_waited_for(
    client: httpx.AsyncClient,
) -> None:
    answer = await submit(client, 1, {**STEP, "learning_rate": -1.0}, wait=20)
    assert (answer.json()["status"], answer.json()["error"]["kind"]) == ("failed", "invalid")
    again = await submit(client, 1, {**STEP, "learning_rate": -1.0}, wait=20)
    assert again.json() == answer.json()
