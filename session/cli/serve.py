"""`modelyard serve`: the interfaces in this process, one supervised worker beside it."""

import asyncio
import fcntl
import os
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import structlog
import typer
import uvicorn
import uvloop

from exporters.serving import TARGETS
from registry.access import service as access
from registry.deployments.controller import Deployer
from registry.kit.collector import spare_what_is_loaded
from registry.kit.db import Database
from registry.kit.errors import Kind, ServiceError
from registry.kit.sockets import listen
from registry.settings import Settings
from session.app import create_app, lifetimes
from session.cli import logs
from session.cli.courier import delivering
from session.cli.credentials import read_credentials, write_credentials
from session.cli.installation import make_ready, open_home
from session.cli.keeper import keep
from session.cli.signals import Server, stop_requested
from session.lifecycle.repository import WorkerRepository
from session.resources import open_database, open_store, scratch_path

log = structlog.get_logger()
_DRAIN_S = 30.0
_RESTART_S = (0.5, 1.0, 2.0, 5.0, 10.0)
_CALM_S = 60.0


class AlreadyServing(ServiceError):
    kind = Kind.conflict

    def __init__(self, home: Path, pid: str) -> None:
        super().__init__(f"another `modelyard serve` (process {pid}) runs on the home {home}")


class AddressInUse(ServiceError):
    kind = Kind.conflict

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(
            f"cannot listen on {host}:{port} ({reason}); choose another: modelyard serve --port N"
        )


class BackgroundEnded(ServiceError):
    """A fault of ours: these run for as long as the service does, whatever happens."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        reason = "" if error is None else f" ({type(error).__name__}: {error})"
        super().__init__(f"the {task.get_name()} ended unexpectedly{reason}, so serve has stopped")


def serve(settings: Settings) -> None:
    """Until Ctrl-C or SIGTERM. Raises ServiceError for what keeps it from starting."""
    logs.configure()
    home = open_home(settings)
    with _only_one(home), _listening(settings.host, settings.port) as listener:
        uvloop.run(_serve(settings, home, listener))


@contextmanager
def _only_one(home: Path) -> Iterator[None]:
    """The lock dies with this process, however it ends."""
    handle = os.open(home / "serve.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyServing(home, os.read(handle, 32).decode() or "unknown") from None
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        yield
    finally:
        os.close(handle)


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """Taken before anything is started, so that a port in use costs nothing."""
    try:
        listener = listen(host, port)
    except OSError as error:
        raise AddressInUse(host, port, error.strerror or str(error)) from None
    with listener:
        yield listener


async def _serve(settings: Settings, home: Path, listener: socket.socket) -> None:
    await make_ready(settings)
    database = open_database(settings)
    url = _url(settings.host, listener.getsockname()[1])
    try:
        await _credentials(database, home, url)
        async with (
            _deploying(settings, database) as deployer,
            delivering(settings, database) as courier,
            _keeping(settings, database) as keeper,
            _worker(settings, database) as supervisor,
        ):
            background = (deployer, courier, keeper, supervisor)
            await _answer(settings, listener, url, background=background)
    finally:
        await database.close()


def _url(host: str, port: int) -> str:
    reachable = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    return f"http://{reachable}:{port}"


async def _credentials(database: Database, home: Path, url: str) -> None:
    """The first token is made once; the address may be another at each start."""
    async with database.begin() as db:
        secret = await access.ensure_admin(db)
        known = read_credentials(home)
        if secret is not None:
            path = write_credentials(home, url, secret)
            log.info("credentials.written", path=str(path), role="admin")
        elif known is not None and known[0] != url:
            write_credentials(home, url, known[1])


async def _answer(
    settings: Settings,
    listener: socket.socket,
    url: str,
    *,
    background: Sequence[asyncio.Task[None]],
) -> None:
    """Until told to stop. Without what runs in the background it would only seem to work."""
    asked = asyncio.Event()
    config = uvicorn.Config(
        create_app(settings, stopping=asked),
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=10,
        timeout_keep_alive=30,
    )
    log.info("serve.ready", url=url, docs=f"{url}/docs", home=str(settings.home_path()))
    typer.echo(f"Modelyard answers at {url} (its pages: {url}/docs). Ctrl-C stops it.")
    server = Server(config)
    spare_what_is_loaded()
    with stop_requested() as stop:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((serving, stopping, *background), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        ended = [task for task in background if task.done()]
        log.info("serve.stopping")
        asked.set()
        server.should_exit = True
        await serving
    if ended:
        raise BackgroundEnded(ended[0])


@asynccontextmanager
async def _deploying(settings: Settings, database: Database) -> AsyncIterator[asyncio.Task[None]]:
    store = open_store(settings)
    deployer = Deployer(database, store, TARGETS, settings.home_path() / "deployments")
    await deployer.prepare()
    task = asyncio.create_task(deployer.run(), name="deployer")
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await deployer.close()


@asynccontextmanager
async def _keeping(settings: Settings, database: Database) -> AsyncIterator[asyncio.Task[None]]:
    keeping = keep(
        database,
        open_store(settings),
        grace=settings.grace(),
        lifetimes=lifetimes(settings.sessions),
    )
    task = asyncio.create_task(keeping, name="keeper")
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def _worker(settings: Settings, database: Database) -> AsyncIterator[asyncio.Task[None]]:
    """One worker process for as long as the block runs, started again when it dies."""
    supervisor = Supervisor(database, scratch_path(settings))
    task = asyncio.create_task(supervisor.run(), name="supervisor")
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await supervisor.stop()


class Supervisor:
    """A worker that dies leaves its lease and its scratch files. Both go, and the next worker takes
    the sessions."""

    def __init__(self, database: Database, scratch: Path) -> None:
        self._database = database
        self._scratch = scratch
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        deaths = 0
        while True:
            started = asyncio.get_running_loop().time()
            why = await self._life()
            lived = asyncio.get_running_loop().time() - started
            deaths = 0 if lived > _CALM_S else deaths + 1
            pause = _RESTART_S[min(deaths, len(_RESTART_S) - 1)]
            log.error("worker.died", why=why, restart_in_s=pause)
            await asyncio.sleep(pause)

    async def _life(self) -> str:
        """From the start of a worker to its end, of which it tells."""
        try:
            async with self._database.begin() as db:
                await WorkerRepository(db).remove()
            await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "session", "worker"),
                stdin=asyncio.subprocess.PIPE,  # closes when this process dies, which ends it too
                start_new_session=True,  # Ctrl-C reaches us alone; we stop it in our order
            )
            return f"exit code {await self._process.wait()}"
        except Exception as error:  # noqa: BLE001 - whatever it is, a worker is tried again
            return f"{type(error).__name__}: {error}"

    async def stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(_DRAIN_S):
                await process.wait()
        except TimeoutError:
            log.error("worker.killed", after_s=_DRAIN_S)
            process.kill()
            await process.wait()
