import typer

from session.cli.output import AsJson, note, say, show_fields

app = typer.Typer(no_args_is_help=True, help="The database's schema.")


@app.command()
def upgrade() -> None:
    """Bring the database to the schema this version needs. Stop the service and back up first."""
    from session.cli import administration

    schema = administration.upgrade_schema()
    note(f"the database is at schema {schema.found}")


@app.command()
def status(as_json: AsJson = False) -> None:
    """Say how the database's schema stands to the one this version needs."""
    from session.cli import administration

    schema = administration.schema_status()
    if as_json:
        show_fields(
            {"state": schema.state, "found": schema.found, "head": schema.head}, as_json=True
        )
    else:
        say(f"{schema.state}: found {schema.found or 'none'}, needed {schema.head or 'none'}")
