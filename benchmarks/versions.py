"""A group of 1,000,000 versions on PostgreSQL: what a question takes at the 99th percentile

Both over HTTP on loopback, one client after another, each server a process of its own on the same
PostgreSQL server. Pages are of 50.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx

from benchmarks.million import ours
from benchmarks.million.timing import percentile, timed
from benchmarks.rows import Row
from benchmarks.servers import await_answer
from session.cli.credentials import write_credentials
from support.postgres import free_port, fresh_postgres, postgres_server
from support.service import serving

COUNT = 1_000_000
PEER = "mlflow==3.17.2"
_LATEST_S, _START_S = 60, 60
_MEMORY = 8 * 2**20  # KiB: reading a million rows as objects may take all there is
_PEER = Path(ours.__file__).with_name("peer.py")
Answers = dict[str, list[float]]

QUESTIONS = {
    "the newest version": "latest",
    "the newest of a kind": "latest?kind=state",
    "by number": "versions/500000",
    "by alias": "versions/alias-1",
    "page": "versions",
    "page of a kind": "versions?kind=merged",
    "page of a stage": "versions?stage=production",
    "page of an approval": "versions?approval=approved",
    "page of a common tag": "versions?tag=nightly",
    "page of a rare tag": "versions?tag=golden",
    "page of a kind and a tag": "versions?kind=state&tag=nightly",
    "page of a kind and an approval": "versions?kind=merged&approval=approved",
    "page of a session": "versions?session=ses_17",
    "page of a rare text": "versions?text=run+77777",
    "page of an absent text": "versions?text=nothing",
    "page of an old span": "versions?created_before=2026-01-01T10:00:00Z",
    "page of tombstones": "versions?deleted=true",
}


def run() -> Iterator[Row]:
    python = _peer_python()
    with postgres_server() as server, fresh_postgres(server) as url, fresh_postgres(server) as peer:
        filled = asyncio.run(ours.fill(url, COUNT))
        _peer(python, peer, "fill", str(COUNT))
        yield from compare(filled, python, peer)


def compare(filled: ours.Filled, python: Path, peer: str) -> Iterator[Row]:
    mine = {**asyncio.run(ours.registrations(filled)), **_asked(filled)}
    with _mlflow_server(python, peer) as url:
        theirs: Answers = json.loads(_peer(python, url, "measure"))
    for question, taken in mine.items():
        yield _row(question, taken, theirs.get(question))
    newest = "the newest version: get_latest_versions()"
    yield _row(newest, mine["the newest version"], _get_latest(python, peer))
    yield from asyncio.run(ours.metering(filled))


def _asked(filled: ours.Filled) -> Answers:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        home.mkdir()
        write_credentials(home, "http://nowhere", filled.token)
        settings = {"MODELYARD_DATABASE__URL": filled.url.replace("+psycopg", "")}
        with (
            serving(home, settings=settings) as service,
            httpx.Client(
                base_url=f"{service.url}/v1/groups/{ours.GROUP}/",
                headers={"Authorization": f"Bearer {filled.token}"},
                timeout=60,
            ) as client,
        ):
            return {name: timed(partial(_get, client, path)) for name, path in QUESTIONS.items()}


def _get(client: httpx.Client, path: str) -> None:
    client.get(path).raise_for_status().json()


def _row(question: str, mine: list[float], theirs: list[float] | None) -> Row:
    note = f"median {percentile(mine, 0.5):.1f}"
    if theirs is not None:
        note += f", theirs {percentile(theirs, 0.5):.1f} of {len(theirs)} calls"
    return Row(
        question,
        percentile(mine, 0.99),
        "ms",
        peer="MLflow" if theirs else "-",
        theirs=percentile(theirs, 0.99) if theirs else None,
        more_is_better=False,
        note=note,
    )


def _get_latest(python: Path, peer: str) -> list[float] | None:
    """MLflow's own `get_latest_versions` reads every version of the model: it may not end."""
    try:
        answers: Answers = json.loads(_peer(python, peer, "latest", timeout_s=_LATEST_S))
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return None
    return answers["latest"]


def _peer(python: Path, url: str, *what: str, timeout_s: float = 900) -> bytes:
    command = map(str, (_MEMORY, python, _PEER, _for_mlflow(url), *what))
    words = ["bash", "-c", 'ulimit -v "$0"; exec "$@"', *command]
    return subprocess.run(
        words,
        cwd=_home(python),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=timeout_s,
        check=True,
    ).stdout


@contextmanager
def _mlflow_server(python: Path, database: str) -> Iterator[str]:
    port = free_port()
    options = ("--backend-store-uri", _for_mlflow(database), "--port", str(port), "--workers", "1")
    process = subprocess.Popen(
        [python, "-m", "mlflow", "server", *options],
        cwd=_home(python),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        await_answer(f"{url}/health", process, "mlflow server", within_s=_START_S)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def _home(python: Path) -> Path:
    """MLflow leaves files where it is started."""
    return python.parents[1]


def _for_mlflow(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg2://")


def _peer_python() -> Path:
    """MLflow in an environment of its own, made once in the cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "modelyard"
    folder = cache / PEER.replace("==", "-")
    python = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", PEER, "psycopg2-binary"], check=True
        )
        (folder / ".ready").touch()
    return python
