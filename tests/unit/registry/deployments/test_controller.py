"""The deployer on a real database, with real child processes that only know their own name."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from exporters.serving.base import Running
from exporters.serving.local import LocalTarget
from registry.access.actor import Actor
from registry.artifacts.memory import MemoryBlobStore
from registry.deployments import service
from registry.deployments.controller import Deployer, Timing
from registry.deployments.model import Standing
from registry.kit.db import Database
from registry.packages.ref import PackageRef
from support.merged import MODEL, member, publish
from support.serving import COMMAND
from support.waiting import until

TIMING = Timing(poll=0.02, start=60.0, first_wait=0.05, longest_wait=0.1)


class Recorded:
    """The real target, which also keeps what it has started."""

    def __init__(self) -> None:
        self.started: list[Running] = []

    async def start(self, model_dir: Path, *, served_name: str, log: Path) -> Running:
        running = await LocalTarget(COMMAND).start(model_dir, served_name=served_name, log=log)
        self.started.append(running)
        return running


class World:
    """One account, its store, and what a test asks of them."""

    def __init__(self, database: Database, workdir: Path, actor: Actor) -> None:
        self.database, self.workdir, self.actor = database, workdir, actor
        self.store, self.target = MemoryBlobStore(), Recorded()

    @asynccontextmanager
    async def deployer(self, timing: Timing = TIMING) -> AsyncIterator[Deployer]:
        targets = {"local": self.target}
        deployer = Deployer(self.database, self.store, targets, self.workdir, timing=timing)
        await deployer.prepare()
        task = asyncio.create_task(deployer.run())
        try:
            yield deployer
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await deployer.close()

    async def publish(self, **files: bytes) -> PackageRef:
        async with self.database.begin() as db:
            model = files or MODEL
            return PackageRef.parse((await publish(db, self.store, self.actor, model=model)).ref)

    async def promote(self, ref: PackageRef) -> None:
        async with self.database.begin() as db:
            await service.promote(db, self.actor, name="live", ref=ref)

    async def rollback(self) -> None:
        async with self.database.begin() as db:
            await service.rollback(db, self.actor, name="live")

    async def standing(self) -> Standing:
        async with self.database.read() as db:
            return await service.require_deployment(db, self.actor, "live")

    async def serves(self, ref: PackageRef) -> None:
        """Wait until the traffic goes to this version, and see that it is this one."""

        async def served() -> bool:
            found = (await self.standing()).served
            return found is not None and found.ref == str(ref) and found.address is not None

        await until(served)
        route = (await self.standing()).route()
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"{route.address}/health")
        assert answer.json()["model"] == route.served_name

    async def failed(self) -> str:
        async def ended() -> bool:
            pending = (await self.standing()).pending
            return pending is not None and pending.status == "failed"

        await until(ended)
        pending = (await self.standing()).pending
        assert pending is not None
        return pending.error or ""


@pytest.fixture
async def world(database: Database, tmp_path: Path) -> World:
    async with database.begin() as db:
        actor = await member(db)
    return World(database, tmp_path / "deployments", actor)


async def test_a_version_is_served_and_its_process_ends_with_the_deployer(world: World) -> None:
    await world.promote(ref := await world.publish())
    async with world.deployer():
        await world.serves(ref)
    assert [running.alive() for running in world.target.started] == [False]


async def test_rollback_takes_over_the_warm_process(world: World) -> None:
    first, second = await world.publish(), await world.publish()
    async with world.deployer():
        for ref in (first, second):
            await world.promote(ref)
            await world.serves(ref)
        await world.rollback()
        await world.serves(first)
        assert len(world.target.started) == 2
        await world.rollback()
        await world.serves(second)
        assert [running.alive() for running in world.target.started] == [True, True]


async def test_only_the_last_process_is_kept_warm(world: World) -> None:
    refs = [await world.publish() for _ in range(3)]
    async with world.deployer():
        for ref in refs:
            await world.promote(ref)
            await world.serves(ref)
        await until(lambda: not world.target.started[0].alive())
        assert [running.alive() for running in world.target.started[1:]] == [True, True]
        await until(lambda: len(list(world.workdir.glob("pkg_*"))) == 2)


async def test_a_failed_start_says_why_and_moves_nothing(world: World) -> None:
    good, bad = await world.publish(), await world.publish(**{"model.safetensors": b""})
    async with world.deployer():
        await world.promote(good)
        await world.serves(good)
        await world.promote(bad)
        assert "no config.json here" in await world.failed()
        await world.serves(good)


async def test_a_process_that_never_gets_healthy_is_ended(world: World) -> None:
    await world.promote(await world.publish(**MODEL, slow=b"yes"))
    async with world.deployer(replace(TIMING, start=2.0)):
        assert "not healthy after 2 s" in await world.failed()
        await until(lambda: not world.target.started[0].alive())


async def test_damaged_files_are_not_served(world: World) -> None:
    await world.promote(await world.publish())
    for key in await world.store.keys(""):
        if key.endswith("model.safetensors"):
            await world.store.put_bytes(key, b"wEights")
    async with world.deployer():
        assert "model.safetensors" in await world.failed()
    assert world.target.started == []


async def test_a_newer_promotion_ends_the_start_of_an_older_one(world: World) -> None:
    slow, good = await world.publish(**MODEL, slow=b"yes"), await world.publish()
    async with world.deployer():
        await world.promote(slow)
        await until(lambda: len(world.target.started) == 1)
        await world.promote(good)
        await world.serves(good)
        await until(lambda: not world.target.started[0].alive())


async def test_a_process_that_dies_is_started_again(world: World) -> None:
    await world.promote(ref := await world.publish())
    async with world.deployer():
        await world.serves(ref)
        for deaths in (1, 2):
            await world.target.started[-1].stop()
            await until(lambda n=deaths: len(world.target.started) > n)  # type: ignore[misc]
            await world.serves(ref)
    async with world.database.read() as db:
        events = (await service.history(db, world.actor, "live")).items
    assert [event.kind for event in events] == ["restart", "restart", "activate", "promote"]


async def test_what_was_served_comes_back_with_the_service(world: World) -> None:
    first, second = await world.publish(), await world.publish()
    async with world.deployer():
        for ref in (first, second):
            await world.promote(ref)
            await world.serves(ref)
    async with world.deployer():
        await world.serves(second)
        assert len(world.target.started) == 3
        await world.rollback()
        await world.serves(first)
