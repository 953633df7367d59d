from pathlib import Path
from typing import Annotated, Any

import typer

from session.cli import completion
from session.cli.choices import Kind
from session.cli.download import bar, download, resumable
from session.cli.output import AsJson, say, show_outcome
from session.cli.references import Reference, parse_reference, parse_source
from session.cli.service import Service
from session.client.config import from_environment
from session.client.service import ServiceClient

Directory = Annotated[Path, typer.Argument(metavar="DIR")]


def push(
    directory: Directory,
    group: Annotated[str, typer.Argument(autocompletion=completion.groups)],
    *,
    base: Annotated[
        str | None, typer.Option(metavar="NAME", help="The registered base model it fits.")
    ] = None,
    kind: Annotated[Kind | None, typer.Option(help="Where it could be more than one.")] = None,
    description: Annotated[str, typer.Option(help="Kept with the version.")] = "",
    metadata: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Kept too; may be repeated.")
    ] = None,
    parent: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP@VERSION",
            help="What it was made from.",
            autocompletion=completion.references,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a version of a PEFT adapter, a merged Hugging Face model, or what `pull` wrote.

    Run again after an interruption, it goes on where it was.
    """
    said = dict(_pair(each) for each in metadata or ())
    if parent is not None:
        parent = _known(parent)
    config = from_environment(by_argument=False)
    with (
        ServiceClient(config.url, config.api_key) as client,
        bar(str(directory)) as progress,
        resumable(client),
    ):
        made = client.push(
            directory,
            group,
            base_model=base,
            kind=kind,
            description=description,
            metadata=said,
            parent=parent,
            progress=progress,
        ).result()
    if as_json:
        show_outcome(
            "", {"version": made.ref, "kind": made.kind, "digest": made.digest}, as_json=True
        )
    else:
        say(made.ref)


def pull(
    version: Annotated[
        str,
        typer.Argument(metavar="GROUP[@VERSION|:ALIAS]", autocompletion=completion.references),
    ],
    directory: Directory,
    as_json: AsJson = False,
) -> None:
    """Download a version's files into DIR, each checked against its digest; GROUP is its newest."""
    asked = parse_source(version)
    with Service.from_environment() as service:
        found = service.get(asked.path)  # an alias may move while the files come
        reference = Reference(asked.group, found["version"])
        count = download(service, reference, directory)
    told = {"version": str(reference), "files": count, "directory": str(directory)}
    show_outcome(f"{reference}: {count} files in {directory}", told, as_json=as_json)


def _known(parent: str) -> str:
    """Before anything is sent. An alias may move, so what it points at is what is sent."""
    asked = parse_reference(parent)
    with Service.from_environment() as service:
        found: dict[str, Any] = service.get(asked.path)
    return str(found["ref"])


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise typer.BadParameter(f"metadata {text!r} is not KEY=VALUE")
    return key, value
