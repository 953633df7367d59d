from typing import Annotated

import typer

from session.cli import completion
from session.cli.choices import SessionStatus
from session.cli.output import AsJson, show_fields, show_outcome, show_rows, waiting
from session.cli.service import Service
from session.client.sessions import session_path

app = typer.Typer(no_args_is_help=True, help="Training sessions.")
_COLUMNS = ("name", "status", "base_model", "group", "step", "last_active_at")
_POLL_S = 20
Named = Annotated[
    str,
    typer.Argument(
        metavar="SESSION", help="A session's name or id.", autocompletion=completion.sessions
    ),
]


@app.command("list")
def list_sessions(
    status: Annotated[SessionStatus | None, typer.Option(help="Only these.")] = None,
    as_json: AsJson = False,
) -> None:
    """List sessions."""
    with Service.from_environment() as service:
        show_rows(service.pages("/v1/sessions", status=status), _COLUMNS, as_json=as_json)


@app.command("show")
def show_session(name: Named, as_json: AsJson = False) -> None:
    """Show one session."""
    with Service.from_environment() as service:
        show_fields(service.get(session_path(name)), as_json=as_json)


@app.command("stop")
def stop_session(name: Named, as_json: AsJson = False) -> None:
    """Stop a session and wait until it is. What it has not saved is lost."""
    with Service.from_environment() as service:
        found = service.post(f"{session_path(name)}/stop")
        on = f"{name} goes on stopping; see: modelyard sessions show {name}"
        with waiting(f"stopping {name}: what it has accepted runs first", interrupted=on):
            while found["status"] == "stopping":
                found = service.get(session_path(found["id"]), wait=_POLL_S)
    show_outcome(f"{name} is {found['status']}", found, as_json=as_json)


@app.command("heartbeat")
def beat_session(name: Named, as_json: AsJson = False) -> None:
    """Keep a session from expiring while you think. An open training client does so by itself."""
    with Service.from_environment() as service:
        found = service.post(f"{session_path(name)}/heartbeat")
    show_outcome(f"{name} lives until {found['expires_at']}", found, as_json=as_json)


@app.command("delete")
def delete_session(name: Named, as_json: AsJson = False) -> None:
    """Delete a session that has ended, with its results. Versions and usage stay."""
    with Service.from_environment() as service:
        found = service.delete(session_path(name))
    show_outcome(f"{name} is deleted", found, as_json=as_json)
