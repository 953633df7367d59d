"""A PostgreSQL server that lives as long as the tests, and a fresh database for each of them."""

import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

_START_S = 60.0
_RANDOM = random.SystemRandom()


class PostgresMissing(Exception):
    """Why there is no server."""


@contextmanager
def postgres_server() -> Iterator[str]:
    """Start one on a free port, its data in a folder of its own; yield its URL."""
    programs = _programs()
    user = _user()
    folder = Path(tempfile.mkdtemp(prefix="modelyard-postgres-"))
    if user is not None:
        shutil.chown(folder, user)
    process: subprocess.Popen[bytes] | None = None
    try:
        data = folder / "data"
        _run([programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-N"], user)
        port = free_port()
        options = [
            "-h",
            "127.0.0.1",
            "-p",
            str(port),
            "-c",
            "fsync=off",
            "-c",
            "max_connections=200",
        ]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [programs / "postgres", "-D", data, "-k", folder, *options],
                stdout=log,
                stderr=log,
                user=user,
            )
        url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        _await(url, process, folder / "log")
        yield url
    finally:
        if process is not None:
            process.terminate()  # waits for clients to leave, of which none is left
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.send_signal(3)  # SIGQUIT: at once
            process.wait(30)
        shutil.rmtree(folder)


@contextmanager
def fresh_postgres(server: str) -> Iterator[str]:
    """A database of its own, dropped afterwards."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    try:
        yield server.rpartition("/")[0] + f"/{name}"
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def _programs() -> Path:
    """Debian keeps the programs of a version beside each other, outside PATH."""
    on_path = shutil.which("postgres")
    found = [Path(on_path).resolve()] if on_path else []
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), reverse=True)
    if not found:
        raise PostgresMissing("PostgreSQL is not installed; on Debian: apt-get install postgresql")
    return found[0].parent


def _user() -> str | None:
    """PostgreSQL refuses to run as root."""
    return "postgres" if os.geteuid() == 0 else None


def _run(command: list[str | Path], user: str | None) -> None:
    done = subprocess.run(command, user=user, capture_output=True, text=True, check=False, cwd="/")
    if done.returncode:
        raise PostgresMissing(f"{command[0]} failed: {done.stderr.strip()}")


def _await(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_S
    while True:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > end:
                raise PostgresMissing(f"it did not start: {log.read_text()[-1000:]}") from None
            time.sleep(0.05)
        else:
            return


def free_port() -> int:
    """From below those that are given out unasked, so it is still free when it is bound."""
    while True:
        port = _RANDOM.randrange(10_000, 16_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
