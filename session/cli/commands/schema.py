from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from session.cli.output import AsJson, say, show_fields, show_outcome, waiting

app = typer.Typer(no_args_is_help=True, help="The database: its schema and its backup.")


@app.command()
def upgrade(as_json: AsJson = False) -> None:
    """Bring the database to the schema this version needs. Stop the service and back up first."""
    from session.cli import administration

    with waiting("upgrading the database", interrupted="run it again: it goes on where it was"):
        schema = administration.upgrade_schema()
    show_outcome(f"the database is at schema {schema.found}", asdict(schema), as_json=as_json)


@app.command()
def status(as_json: AsJson = False) -> None:
    """Say how the database's schema stands to the one this version needs."""
    from session.cli import administration

    schema = administration.schema_status()
    if as_json:
        show_fields(asdict(schema), as_json=True)
    else:
        say(f"{schema.state}: found {schema.found or 'none'}, needed {schema.head or 'none'}")


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="It must not be there yet.")],
    as_json: AsJson = False,
) -> None:
    """Copy a SQLite database into FILE as it is at one moment, also while the service runs."""
    from session.cli import administration

    with waiting("copying the database", interrupted=f"{file} was not made"):
        made = administration.back_up_database(file)
    show_outcome(f"{made['path']}: {made['bytes']:,} bytes", made, as_json=as_json)
