import typer

from session.cli.output import AsJson, show_rows
from session.cli.service import Service

app = typer.Typer(no_args_is_help=True, help="Groups of versions.")


@app.command("list")
def list_groups(as_json: AsJson = False) -> None:
    """List the groups."""
    with Service.from_environment() as service:
        rows = service.pages("/v1/groups")
    show_rows(rows, ("name", "last_version", "description", "created_at"), as_json=as_json)
