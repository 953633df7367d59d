"""`modelyard worker`: an engine, its sessions, and the internal channel on a loopback port."""

import asyncio
import socket
import sys
import threading
from secrets import token_urlsafe

import uvicorn

from registry.artifacts.local import LocalBlobStore
from registry.kit.db import Database
from registry.kit.ids import new_id
from registry.settings import Settings
from session.cli.signals import Server, stop_requested
from session.engine.local import LocalEngine
from session.worker.context import Context
from session.worker.process import Worker
from session.worker.server import create_channel


def worker(settings: Settings) -> None:
    asyncio.run(_work(settings))


async def _work(settings: Settings) -> None:
    database = Database.connect(settings.database_url())
    engine = LocalEngine(
        micro_batch_tokens=settings.engine.micro_batch_tokens, threads=settings.engine.threads
    )
    store = LocalBlobStore(settings.objects_path())
    context = Context(new_id("wrk"), database, store, engine, settings.cache_path() / "worker")
    running = Worker(context)
    secret = token_urlsafe(32)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            create_channel(running, secret=secret), log_config=None, access_log=False
        )
        server = Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        port = listener.getsockname()[1]
        await running.start(address=f"http://127.0.0.1:{port}", secret=secret)
        await _told_to_stop()
        await running.close()
        server.should_exit = server.force_exit = True
        await serving
    await engine.close()
    await database.close()


async def _told_to_stop() -> None:
    """By a signal, or by the end of the process that started this one: its pipe closes."""
    loop = asyncio.get_running_loop()
    with stop_requested() as stop:

        def watch() -> None:
            sys.stdin.buffer.read()
            loop.call_soon_threadsafe(stop.set)

        if not sys.stdin.isatty():
            threading.Thread(target=watch, daemon=True).start()
        await stop.wait()
