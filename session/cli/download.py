"""A version's files: each stands under its name only once its digest has been checked."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from session.cli.errors import CommandFailed
from session.cli.output import Interrupted
from session.cli.references import Reference
from session.cli.service import Service
from session.client.config import from_environment
from session.client.service import ServiceClient


def download(service: Service, reference: Reference, directory: Path) -> int:
    """How many files there are. What an earlier try left is gone on with."""
    files = service.get(f"{reference.path}/files")["data"]
    config = from_environment(by_argument=False)
    with ServiceClient(config.url, config.api_key) as client, bar(str(reference)) as progress:
        try:
            with resumable(client):
                client.pull(str(reference), directory, progress=progress).result()
        except OSError as error:
            raise CommandFailed(f"it cannot be written: {error}") from None
    return len(files)


@contextmanager
def resumable(client: ServiceClient) -> Iterator[None]:
    """For a call that the next run of the command goes on with."""
    try:
        yield
    except KeyboardInterrupt:
        client.give_up()  # closing it would call this lost
        raise Interrupted("run the same command again to go on where it was") from None


@contextmanager
def bar(name: str) -> Iterator[Callable[[str, int, int], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=None)

        def show(what: str, done: int, total: int) -> None:
            progress.update(task, description=f"{what} {name}", completed=done, total=total or None)

        yield show
