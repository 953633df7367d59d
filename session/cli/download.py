"""A version's files: each stands under its name only once its digest has been checked."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from session.cli.errors import CommandFailed
from session.cli.references import Reference
from session.cli.service import Service


def download(service: Service, reference: Reference, directory: Path) -> int:
    """How many files there are. What an earlier try left complete is not fetched again."""
    files = service.get(f"{reference.path}/files")["data"]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(str(reference), total=sum(entry["size"] for entry in files))
        for entry in files:
            try:
                _fetch(service, reference, entry, _inside(directory, entry["path"]))
            except OSError as error:
                raise CommandFailed(f"{entry['path']} cannot be written: {error}") from None
            progress.advance(task, entry["size"])
    return len(files)


def _inside(directory: Path, path: str) -> Path:
    """A service that we do not control names the paths: none may lead out of the directory."""
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts or not parts.parts:
        raise CommandFailed(f"the service lists {path!r}, which is outside the version")
    return directory / parts


def _fetch(service: Service, reference: Reference, entry: Mapping[str, Any], target: Path) -> None:
    if target.exists():
        if _digest(target) == entry["sha256"]:
            return
        raise CommandFailed(f"{target} exists and is another file; nothing was overwritten")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    digest = hashlib.sha256()
    address = f"{reference.path}/files/{quote(entry['path'])}"
    with service.stream(address) as chunks, partial.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
    if digest.hexdigest() != entry["sha256"]:
        partial.unlink()
        raise CommandFailed(f"{entry['path']} arrived damaged: its SHA-256 is not the version's")
    os.replace(partial, target)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
