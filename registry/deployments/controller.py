"""Runs what the deployment rows ask for: one serving process for every live revision.

It compares rows with processes a few times a second and mends the difference. All decisions are in
the rows, so it may die at any moment: the next one starts every served revision again.
"""

import asyncio
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import structlog

from exporters.serving.base import Running, Target
from registry.access.actor import Actor, Role
from registry.artifacts.manifest import FileEntry
from registry.artifacts.store import BlobStore
from registry.artifacts.transfer import materialize
from registry.deployments import moves
from registry.deployments.errors import StartFailed
from registry.deployments.model import DeploymentRevision, RevisionStatus
from registry.kit.db import Database
from registry.kit.errors import ServiceError
from registry.packages import service as packages
from registry.packages.model import MERGED
from registry.packages.ref import PackageRef

_LOGS = "logs"
_LONGEST_REASON = 500
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. A revision that keeps dying is started again ever later, up to `longest_wait`."""

    poll: float = 0.3
    start: float = 300.0
    first_wait: float = 1.0
    longest_wait: float = 60.0


class Deployer:
    """`prepare()`, `run()` until cancelled, `close()`. `workdir` holds model files and logs."""

    def __init__(
        self,
        database: Database,
        store: BlobStore,
        targets: Mapping[str, Target],
        workdir: Path,
        *,
        timing: Timing | None = None,
    ) -> None:
        self._database = database
        self._store = store
        self._targets = targets
        self._workdir = workdir
        self._timing = timing or Timing()
        self._prepared = False
        self._awake = asyncio.Event()
        self._running: dict[str, Running] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._deaths: dict[str, tuple[int, float]] = {}
        self._kept: set[str] | None = None
        self._unpacking: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._client = httpx.AsyncClient(timeout=5.0, trust_env=False)

    async def prepare(self) -> None:
        """Withdraw the addresses of an earlier run; to be done before a request can follow one."""
        (self._workdir / _LOGS).mkdir(parents=True, exist_ok=True)
        async with self._database.begin() as db:
            await moves.forget_processes(db)
        self._prepared = True

    async def run(self) -> None:
        if not self._prepared:
            await self.prepare()
        while True:
            try:
                await self._compare()
            except Exception as error:  # noqa: BLE001 - the loop outlives a database that is away
                await log.aexception("deployer.failed", exc_info=error)
            await self._sleep(self._timing.poll)

    def wake(self) -> None:
        """Look at the rows now instead of at the next poll."""
        self._awake.set()

    async def close(self) -> None:
        """End every process. The rows stay: the next run starts from them."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for revision_id in list(self._running):
            self._end(revision_id)
        await asyncio.gather(*self._ending)
        await self._client.aclose()

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._awake.wait()
        except TimeoutError:
            return
        self._awake.clear()

    async def _compare(self) -> None:
        async with self._database.read() as db:
            live = await moves.live(db)
        self._end_the_unwanted({revision.id for revision in live})
        for revision in live:
            if revision.id in self._tasks:
                continue
            match revision.status:
                case RevisionStatus.starting:
                    self._spawn(revision, self._warm_twin(revision, live))
                case RevisionStatus.active if not self._has_process(revision.id):
                    self._spawn(revision, None)
                case RevisionStatus.warm if not self._has_process(revision.id):
                    async with self._database.begin() as db:
                        await moves.stop(db, revision)
        await self._sweep({revision.package_id for revision in live})

    def _has_process(self, revision_id: str) -> bool:
        return revision_id in self._running and self._running[revision_id].alive()

    def _warm_twin(
        self, revision: DeploymentRevision, live: Sequence[DeploymentRevision]
    ) -> str | None:
        """The warm revision of the same version, whose process a rollback takes over."""
        same = (revision.deployment_id, revision.package_id)
        return next(
            (
                other.id
                for other in live
                if other.status == RevisionStatus.warm
                and (other.deployment_id, other.package_id) == same
                and self._has_process(other.id)
            ),
            None,
        )

    def _end_the_unwanted(self, live: set[str]) -> None:
        for revision_id in self._tasks.keys() - live:
            self._tasks[revision_id].cancel()
        for revision_id in self._running.keys() - live - self._tasks.keys():
            self._deaths.pop(revision_id, None)
            self._end(revision_id)

    async def _sweep(self, needed: set[str]) -> None:
        """Drop the model files that no live revision runs on; the store still has them."""
        if needed == self._kept or self._tasks or self._ending:
            return
        for directory in self._workdir.iterdir():
            if directory.name != _LOGS and directory.name not in needed:
                await asyncio.to_thread(shutil.rmtree, directory)
        self._kept = needed

    def _end(self, revision_id: str) -> None:
        """In the background: requests under way may finish."""
        task = asyncio.create_task(self._running.pop(revision_id).stop())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _spawn(self, revision: DeploymentRevision, twin: str | None) -> None:
        if revision.status == RevisionStatus.active:
            work = self._bring_back(revision)
        else:
            work = self._bring_up(revision, twin)
        task = asyncio.create_task(work)
        self._tasks[revision.id] = task
        task.add_done_callback(lambda done: self._finished(revision.id, done))

    def _finished(self, revision_id: str, task: asyncio.Task[None]) -> None:
        del self._tasks[revision_id]
        self._awake.set()
        if not task.cancelled() and (error := task.exception()):
            log.error("deployment.broken", revision=revision_id, exc_info=error)

    async def _bring_up(self, revision: DeploymentRevision, twin: str | None) -> None:
        """Start, wait for health, move the route; on failure traffic stays where it was."""
        try:
            if twin is not None:
                self._running[revision.id] = self._running.pop(twin)
            address = await self._launch(revision)
        except (ServiceError, OSError) as error:
            async with self._database.begin() as db:
                await moves.fail(db, revision, reason=_told(error))
            await log.awarning("deployment.start_failed", version=revision.ref, reason=str(error))
            return
        async with self._database.begin() as db:
            moved = await moves.activate(db, revision, address=address)
        await log.ainfo("deployment.activated", version=revision.ref, moved=moved)

    async def _bring_back(self, revision: DeploymentRevision) -> None:
        """Start the served revision again, however often it takes."""
        if revision.id in self._running:
            self._end(revision.id)
            async with self._database.begin() as db:
                await moves.lose(db, revision, reason=_died(self._log_of(revision)))
        await asyncio.sleep(self._wait_before_restart(revision.id))
        try:
            address = await self._launch(revision)
        except (ServiceError, OSError) as error:
            async with self._database.begin() as db:
                await moves.lose(db, revision, reason=_told(error))
            await log.awarning("deployment.restart_failed", version=revision.ref, reason=str(error))
            return
        async with self._database.begin() as db:
            await moves.restart(db, revision, address=address)

    def _wait_before_restart(self, revision_id: str) -> float:
        """Nothing at first, then twice as long each time, until a process has lived a while."""
        moment, calm = asyncio.get_running_loop().time(), 2 * self._timing.longest_wait
        count, last = self._deaths.get(revision_id, (0, moment))
        count = 0 if moment - last > calm else count
        self._deaths[revision_id] = (count + 1, moment)
        longer = self._timing.first_wait * 2.0 ** min(count - 1, 32)
        return min(self._timing.longest_wait, longer) if count else 0.0

    async def _launch(self, revision: DeploymentRevision) -> str:
        """The address of a healthy process on verified files: the one it has, or a new one."""
        if not self._has_process(revision.id):
            directory = await self._files(revision)
            self._running[revision.id] = await self._targets[revision.target].start(
                directory, served_name=revision.served_name, log=self._log_of(revision)
            )
        try:
            return await self._until_healthy(revision)
        except (ServiceError, asyncio.CancelledError):
            self._end(revision.id)
            raise

    async def _files(self, revision: DeploymentRevision) -> Path:
        """The merged model of the version, from the store, every digest checked."""
        directory = self._workdir / revision.package_id
        actor = Actor(revision.account_id, Role.viewer)
        async with self._unpacking[revision.package_id]:
            async with self._database.read() as db:
                ref = PackageRef.parse(revision.ref)
                package = await packages.require_live(db, actor, ref)
                files = await packages.files(db, package)
            merged = [
                FileEntry(file.path.removeprefix(MERGED), file.size, file.sha256)
                for file in files
                if file.path.startswith(MERGED)
            ]
            await materialize(self._store, package.prefix + MERGED, merged, directory)
        return directory

    async def _until_healthy(self, revision: DeploymentRevision) -> str:
        running, output = self._running[revision.id], self._log_of(revision)
        clock = asyncio.get_running_loop()
        deadline = clock.time() + self._timing.start
        while clock.time() < deadline:
            if not running.alive():
                raise StartFailed(_died(output))
            if running.address and await self._answers(running.address, revision.served_name):
                return running.address
            await asyncio.sleep(min(0.1, self._timing.poll))
        said = _last_words(output)
        raise StartFailed(f"not healthy after {self._timing.start:g} s; its last words: {said}")

    async def _answers(self, address: str, served_name: str) -> bool:
        """Healthy, and serving what we believe: another process may hold the port by now."""
        try:
            answer = await self._client.get(f"{address}/health")
            healthy: bool = answer.json() == {"status": "ok", "model": served_name}
        except (httpx.HTTPError, ValueError):
            return False
        return answer.status_code == 200 and healthy

    def _log_of(self, revision: DeploymentRevision) -> Path:
        return self._workdir / _LOGS / f"{revision.id}.log"


def _told(error: ServiceError | OSError) -> str:
    """What the deployment's history says; the log has the whole."""
    return error.message if isinstance(error, ServiceError) else str(error)


def _died(output: Path) -> str:
    return f"the serving process ended; its last words: {_last_words(output)}"


def _last_words(output: Path) -> str:
    """The last line that is not indented: of a traceback, the error itself."""
    text = output.read_text("utf-8", errors="replace") if output.exists() else ""
    lines = [line for line in text.splitlines() if line and not line[0].isspace()]
    return lines[-1][:_LONGEST_REASON] if lines else "none"
