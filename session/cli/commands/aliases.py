from typing import Annotated, Any

import typer

from session.cli import completion
from session.cli.commands.versions import Group, Number, Why, Written
from session.cli.errors import CommandFailed, Ending
from session.cli.output import AsJson, show_outcome, show_rows
from session.cli.references import Reference, group_path, parse_reference
from session.cli.service import Service
from session.client.errors import NotFoundError

app = typer.Typer(no_args_is_help=True, help="Names in a group that point at one version each.")
_COLUMNS = ("alias", "ref", "protected", "revision", "updated_at", "digest")
_Was = Annotated[
    int | None, typer.Option("--from", help="Only if it points at this version now.", min=1)
]
_Protect = Annotated[
    bool | None, typer.Option("--protect/--unprotect", help="Whether only an admin moves it.")
]


@app.command("list")
def list_aliases(group: Group, as_json: AsJson = False) -> None:
    """List a group's aliases and the versions they point at."""
    with Service.from_environment() as service:
        rows = service.pages(f"{group_path(group)}/aliases")
    show_rows(rows, _COLUMNS, as_json=as_json)


@app.command("set")
def set_alias(
    name: Annotated[str, typer.Argument(metavar="ALIAS")],
    group: Written,
    version: Number = None,
    *,
    why: Why = "",
    was: _Was = None,
    protect: _Protect = None,
    as_json: AsJson = False,
) -> None:
    """Let ALIAS point at a version of its group."""
    reference = parse_reference(group, version)
    with Service.from_environment() as service:
        target = service.get(reference.path)
        found = _find(service, reference.group, name)
        _require(reference.group, name, found, was)
        wish = {"version": target["version"], "why": why, "protected": protect}
        path = f"{group_path(reference.group)}/aliases/{name}"
        revision = found["revision"] if found else None
        moved = service.change("PUT", path, wish, revision=revision)
    before = f", no longer at {found['ref']}" if found and found["ref"] != target["ref"] else ""
    line = f"{Reference(reference.group, name)} points at {target['ref']}{before}"
    show_outcome(line, moved, as_json=as_json)


@app.command("remove")
def remove_alias(
    group: Group,
    name: Annotated[str, typer.Argument(metavar="ALIAS", autocompletion=completion.aliases)],
    *,
    why: Why = "",
    was: _Was = None,
    as_json: AsJson = False,
) -> None:
    """Remove an alias. The version stays."""
    path = f"{group_path(group)}/aliases/{name}"
    with Service.from_environment() as service:
        found = service.get(path)
        _require(group, name, found, was)
        service.change("DELETE", path, None, revision=found["revision"], why=why)
    line = f"{Reference(group, name)} is removed; it pointed at {found['ref']}"
    show_outcome(line, found, as_json=as_json)


def _find(service: Service, group: str, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = service.get(f"{group_path(group)}/aliases/{name}")
    except NotFoundError:
        return None
    return found


def _require(group: str, name: str, found: dict[str, Any] | None, was: int | None) -> None:
    if was is not None and (found is None or found["version"] != was):
        points = f"points at {found['ref']}" if found else "does not exist"
        line = f"{Reference(group, name)} {points}, not at version {was}"
        raise CommandFailed(line, Ending.refused)
