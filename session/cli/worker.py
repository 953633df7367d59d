"""`modelyard worker`: an engine, its sessions, and the internal channel on a loopback port."""

import asyncio
import os
import sys
import threading
from secrets import token_urlsafe

import typer
import uvicorn
import uvloop

from registry.kit.collector import spare_what_is_loaded
from registry.kit.ids import new_id
from registry.kit.sockets import listen
from registry.kit.stopping import AnswersWhenStopping
from registry.settings import Settings
from session.cli import logs
from session.cli.installation import make_ready, open_engine
from session.cli.signals import Server, stop_requested
from session.resources import open_database, open_store, scratch_path
from session.worker.context import Context
from session.worker.process import Worker
from session.worker.server import create_channel


def worker(settings: Settings) -> None:
    logs.configure()
    uvloop.run(_work(settings))


async def _work(settings: Settings) -> None:
    await make_ready(settings)
    database = open_database(settings)
    engine = open_engine(settings.engine)
    store = open_store(settings)
    context = Context(new_id("wrk"), database, store, engine, scratch_path(settings))
    running = Worker(context)
    secret, ended = token_urlsafe(32), asyncio.Event()
    with listen("127.0.0.1", 0) as listener:
        config = uvicorn.Config(
            AnswersWhenStopping(create_channel(running, secret=secret), stopping=ended),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="websockets-sansio",
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=5,
        )
        server = Server(config)
        spare_what_is_loaded()
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        port = listener.getsockname()[1]
        await running.start(address=f"http://127.0.0.1:{port}", secret=secret)
        await _told_to_stop(running.broken)
        await running.close()
        ended.set()
        server.should_exit = True
        await serving
    await engine.close()
    await database.close()
    if running.broken.is_set():
        raise typer.Exit(1)


async def _told_to_stop(broken: asyncio.Event) -> None:
    """By a signal, by the end of the process that started this one (its pipe closes), or from
    within."""
    loop = asyncio.get_running_loop()
    with stop_requested() as stop:

        def watch() -> None:
            while os.read(0, 4096):  # not sys.stdin, whose lock would block the interpreter's end
                pass
            loop.call_soon_threadsafe(stop.set)

        if not sys.stdin.isatty():
            threading.Thread(target=watch, daemon=True).start()
        waiting = [asyncio.create_task(event.wait()) for event in (stop, broken)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
