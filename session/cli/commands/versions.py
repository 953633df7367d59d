from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from session.cli.download import download
from session.cli.errors import CommandFailed
from session.cli.output import AsJson, note, show_fields, show_rows, waiting
from session.cli.references import parse_reference
from session.cli.service import Service

app = typer.Typer(no_args_is_help=True, help="Versions of weights.")
_COLUMNS = ("ref", "kind", "step", "parent", "size", "approval", "created_at", "description")
_POLL_S = 20
Written = Annotated[str, typer.Argument(metavar="GROUP[@VERSION]")]
Number = Annotated[str | None, typer.Argument(metavar="VERSION", show_default=False)]


@app.command("list")
def list_versions(
    group: str,
    kind: Annotated[str | None, typer.Option(help="state, adapter or merged.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Not only the newest fifty.")] = False,
    as_json: AsJson = False,
) -> None:
    """List a group's versions, newest first."""
    path = f"/v1/groups/{quote(group, safe='')}/versions"
    with Service.from_environment() as service:
        if every:
            rows, more = service.pages(path, kind=kind), False
        else:
            rows, more = service.page(path, kind=kind)
    show_rows(rows, _COLUMNS, as_json=as_json)
    if more:
        note("older ones are not shown; --all lists them")


@app.command("show")
def show_version(group: Written, version: Number = None, as_json: AsJson = False) -> None:
    """Show one version."""
    reference = parse_reference(group, version)
    with Service.from_environment() as service:
        show_fields(service.get(reference.path), as_json=as_json)


@app.command("files")
def list_files(group: Written, version: Number = None, as_json: AsJson = False) -> None:
    """List a version's files with their sizes and digests."""
    reference = parse_reference(group, version)
    with Service.from_environment() as service:
        rows = service.get(f"{reference.path}/files")["data"]
    show_rows(rows, ("path", "size", "sha256"), as_json=as_json)


@app.command("download", no_args_is_help=True)
def download_version(
    words: Annotated[list[str], typer.Argument(metavar="GROUP@VERSION DIR", show_default=False)],
) -> None:
    """Download a version's files into DIR, each checked against its digest."""
    if not 2 <= len(words) <= 3:
        raise typer.BadParameter("give GROUP@VERSION and a directory")
    *written, directory = words
    reference = parse_reference(*written)
    with Service.from_environment() as service:
        count = download(service, reference, Path(directory))
    note(f"{reference}: {count} files in {directory}")


def merge(group: Written, version: Number = None) -> None:
    """Make a version with full weights, which can be served, out of an adapter or a state."""
    reference = parse_reference(group, version)
    with Service.from_environment() as service:
        found = service.post(f"{reference.path}/merge")
        on = f"the merge of {reference} goes on; see: modelyard versions list {reference.group}"
        with waiting(f"merging {reference}", interrupted=on):
            while found["status"] in {"pending", "running"}:
                found = service.get(f"/v1/merges/{found['id']}", wait=_POLL_S)
    if found["status"] == "failed":
        raise CommandFailed(f"merging {reference} failed: {found['error']}")
    typer.echo(found["version"])
