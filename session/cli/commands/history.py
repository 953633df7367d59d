from typing import Annotated

import typer

from session.cli import completion
from session.cli.commands.versions import Group
from session.cli.expiry import parse_moment
from session.cli.output import AsJson, note, show_rows
from session.cli.references import group_path
from session.cli.service import Service

_MOVES = ("at", "kind", "alias", "version", "from", "to", "role", "token", "why")
_STANDING = ("alias", "to", "digest", "at", "role", "token", "why")


def history(
    group: Group,
    alias: Annotated[
        str | None,
        typer.Option(help="Only moves of this alias.", autocompletion=completion.aliases),
    ] = None,
    version: Annotated[int | None, typer.Option(help="Only moves about this version.")] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="What each alias pointed at then: 2030-01-31T12:00."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how aliases, approvals and stages of a group moved, newest first."""
    path = group_path(group)
    with Service.from_environment() as service:
        if at is None:
            rows = service.pages(f"{path}/history", alias=alias, version=version)
            return show_rows(rows, _MOVES, as_json=as_json)
        moment = parse_moment(at)
        found = service.get(f"{path}/standing", at=moment.isoformat())["data"]
    kept = [
        row for row in found if alias in (None, row["alias"]) and version in (None, row["version"])
    ]
    if not as_json:
        note(f"at {moment.isoformat()}:")
    show_rows(kept, _STANDING, as_json=as_json)
