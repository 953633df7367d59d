from pathlib import Path
from typing import Annotated

import typer

Host = Annotated[str | None, typer.Option(help="The address to listen on.")]
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="0 takes a free one.")]


def serve(host: Host = None, port: Port = None) -> None:
    """Run the whole service: the interfaces and one worker. Ctrl-C stops both."""
    from session.cli.installation import load_settings
    from session.cli.serve import serve as run

    run(load_settings(host=host, port=port))


def worker() -> None:
    """Run one worker; `serve` starts its own."""
    from session.cli.installation import load_settings
    from session.cli.worker import worker as run

    run(load_settings())


def serve_model(
    directory: Annotated[Path, typer.Argument(exists=True, file_okay=False)],
    served_name: Annotated[str, typer.Option()],
    address_file: Annotated[Path, typer.Option(help="Written once it answers: its URL.")],
    host: Annotated[str, typer.Option()] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 0,
) -> None:
    """Serve one directory of merged weights; `serve` starts these for its deployments. Its engine
    has the settings of the installation's."""
    from session.cli import logs
    from session.cli.installation import load_settings, open_engine
    from session.serving.main import serve_model as run

    logs.configure()
    run(
        directory,
        served_name=served_name,
        address_file=address_file,
        host=host,
        port=port,
        engine=open_engine(load_settings().engine),
    )
