from pathlib import Path
from typing import Annotated

import typer

from session.cli.output import AsJson, note, show_outcome, show_rows

app = typer.Typer(no_args_is_help=True, help="Base models, shared by every account.")
_COLUMNS = ("name", "architecture", "context_length", "vocab_size", "digest")


@app.command("add")
def add_model(
    name: Annotated[str, typer.Argument(help="The name clients will use.")],
    path: Annotated[
        Path | None,
        typer.Argument(
            exists=True,
            file_okay=False,
            help="A Hugging Face directory. Without one, NAME is a model Modelyard can fetch.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Register a Hugging Face directory, or fetch a model that Modelyard knows by name."""
    from session.cli import administration

    model = administration.add_model(name, path, say=note)
    show_outcome(f"{model['name']} is ready: {model['digest']}", model, as_json=as_json)


@app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """List the base models."""
    from session.cli import administration

    show_rows(administration.list_models(), _COLUMNS, as_json=as_json)
