from typing import Annotated, Any

import typer

from session.cli.commands.versions import Group, Why
from session.cli.output import AsJson, show_outcome, show_rows
from session.cli.references import group_path
from session.cli.service import Service

app = typer.Typer(no_args_is_help=True, help="Groups of versions.")


@app.command("list")
def list_groups(as_json: AsJson = False) -> None:
    """List the groups."""
    with Service.from_environment() as service:
        rows = service.pages("/v1/groups")
    columns = ("name", "last_version", "require_approval", "description", "created_at")
    show_rows(rows, columns, as_json=as_json)


@app.command("edit")
def edit_group(
    group: Group,
    *,
    description: Annotated[str | None, typer.Option(help="The new description.")] = None,
    require_approval: Annotated[
        bool | None,
        typer.Option(
            "--require-approval/--no-require-approval",
            help="Promote approved versions only. Takes an admin's token.",
            show_default=False,
        ),
    ] = None,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Change a group's description, or what it asks of a version before it is promoted."""
    asked = {"description": description, "require_approval": require_approval}
    changes: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if not changes:
        raise typer.BadParameter("say what to change: see --help")
    path = group_path(group)
    with Service.from_environment() as service:
        revision = service.get(path)["revision"]
        found = service.change("PATCH", path, {**changes, "why": why}, revision=revision)
    show_outcome(f"{group} is changed", found, as_json=as_json)


@app.command("delete")
def delete_group(group: Group, as_json: AsJson = False) -> None:
    """Delete a group whose versions are all purged. Made again, it goes on counting."""
    with Service.from_environment() as service:
        found = service.delete(group_path(group))
    show_outcome(f"{group} is deleted", found, as_json=as_json)
