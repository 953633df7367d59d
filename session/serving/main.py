"""Runs one serving process: load, listen, tell the address, end with the parent."""

import asyncio
import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import uvicorn
import uvloop

from registry.kit.collector import spare_what_is_loaded
from registry.kit.errors import Kind, ServiceError
from registry.kit.sockets import listen
from session.engine.port import BaseRef, Engine
from session.sampling.chat import ChatTokenizer
from session.serving.app import Serving, create_app

_DRAIN_S = 5
_LAST_WORD_S = 8.0  # below the patience of whoever started us, who then kills


class NoContextLength(ServiceError):
    kind = Kind.invalid

    def __init__(self, config: Path) -> None:
        super().__init__(f"{config}: max_position_embeddings is missing")


def serve_model(
    directory: Path,
    *,
    served_name: str,
    address_file: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    engine: Engine,
) -> None:
    """Until stopped. With `address_file` it belongs to a parent: the file gets the URL once the
    model answers, and the process ends when its standard input closes."""
    context_length = _context_length(directory / "config.json")
    chat = ChatTokenizer(directory)
    serving = Serving(engine, BaseRef(served_name, served_name, directory), chat, context_length)
    with listen(host, port) as listener:
        uvloop.run(_serve(serving, listener, address_file))


async def _serve(serving: Serving, listener: socket.socket, address_file: Path | None) -> None:
    config = uvicorn.Config(
        create_app(serving),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_DRAIN_S,
        timeout_keep_alive=600,  # the proxy ends idle connections; a race would cost a request
    )
    server = uvicorn.Server(config)
    loading = asyncio.create_task(serving.warm_up())

    def stop() -> None:
        server.should_exit = True
        loading.cancel()

    if address_file is not None:
        _end_with_parent(asyncio.get_running_loop(), stop)
    try:
        await asyncio.wait({loading})
        if loading.cancelled():
            return
        loading.result()
        spare_what_is_loaded()
        host, port = listener.getsockname()[:2]
        if address_file is not None:
            _tell(address_file, f"http://{host}:{port}")
        await server.serve(sockets=[listener])
    finally:
        await serving.engine.close()


def _tell(address_file: Path, url: str) -> None:
    """A reader sees all of it or none."""
    aside = address_file.with_suffix(".new")
    aside.write_text(url)
    aside.rename(address_file)


def _end_with_parent(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    def watch() -> None:
        while os.read(0, 4096):  # not sys.stdin, whose lock would block the interpreter's end
            pass
        last_word = threading.Timer(_LAST_WORD_S, os._exit, (1,))
        last_word.daemon = True
        last_word.start()
        loop.call_soon_threadsafe(stop)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _context_length(config: Path) -> int:
    """Models with several parts keep it with their language part."""
    content = json.loads(config.read_text("utf-8"))
    found = content.get("max_position_embeddings") or content.get("text_config", {}).get(
        "max_position_embeddings"
    )
    if not isinstance(found, int):
        raise NoContextLength(config)
    return found
