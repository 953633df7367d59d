import time
from typing import Annotated, Any
from urllib.parse import quote

import typer

from session.cli import completion
from session.cli.commands.versions import Number, Written
from session.cli.errors import CommandFailed
from session.cli.output import AsJson, show_fields, show_outcome, show_rows, waiting
from session.cli.references import parse_reference
from session.cli.service import Service

app = typer.Typer(no_args_is_help=True, help="What is served, and under which name.")
_COLUMNS = ("name", "status", "version", "approval", "previous", "pending", "updated_at")
_POLL_S = 0.5
Named = Annotated[str, typer.Argument(metavar="NAME", autocompletion=completion.deployments)]
Patience = Annotated[float, typer.Option("--timeout", min=1, help="Seconds to wait for it.")]


@app.command("list")
def list_deployments(as_json: AsJson = False) -> None:
    """List the deployments."""
    with Service.from_environment() as service:
        show_rows(service.pages("/v1/deployments"), _COLUMNS, as_json=as_json)


@app.command("show")
def show_deployment(name: Named, as_json: AsJson = False) -> None:
    """Show one deployment."""
    with Service.from_environment() as service:
        show_fields(service.get(_path(name)), as_json=as_json)


@app.command("history")
def show_history(name: Named, as_json: AsJson = False) -> None:
    """List what a deployment has served, newest first."""
    with Service.from_environment() as service:
        rows = service.pages(f"{_path(name)}/history")
    show_rows(rows, ("at", "kind", "actor", "from", "to", "why"), as_json=as_json)


def promote(
    group: Written,
    version: Number = None,
    *,
    name: Annotated[
        str,
        typer.Option(
            "--as", help="The name clients ask for.", autocompletion=completion.deployments
        ),
    ],
    timeout: Patience = 600,
    as_json: AsJson = False,
) -> None:
    """Serve a merged version under a name, and wait until it answers."""
    reference = parse_reference(group, version)
    with Service.from_environment() as service:
        wanted = str(reference)
        if not isinstance(reference.version, int):
            wanted = service.get(reference.path)["ref"]  # an alias may move while we wait
        service.post(f"{_path(name)}/promote", {"version": wanted})
        found = _wait(service, name, wanted, timeout)
        line = f"{name} now serves {wanted}; OpenAI clients: {service.url}/openai/v1"
    show_outcome(line, found, as_json=as_json)


def rollback(name: Named, timeout: Patience = 600, as_json: AsJson = False) -> None:
    """Return to the version a deployment served before, and wait until it answers."""
    with Service.from_environment() as service:
        found = service.post(f"{_path(name)}/rollback")
        wanted = _starting(found) or found["version"]
        if wanted is None:
            line = f"{name} serves nothing: what was starting is withdrawn"
            return show_outcome(line, found, as_json=as_json)
        found = _wait(service, name, wanted, timeout)
    show_outcome(f"{name} now serves {wanted}", found, as_json=as_json)


def _wait(service: Service, name: str, wanted: str, timeout: float) -> dict[str, Any]:
    ends = time.monotonic() + timeout
    on = (
        f"loading {wanted} goes on; see: modelyard deployments show {name}; "
        f"to withdraw it: modelyard rollback {name}"
    )
    with waiting(f"loading {wanted} for {name}", interrupted=on):
        found: dict[str, Any] = service.get(_path(name))
        while _is_moving(found, wanted):
            if time.monotonic() > ends:
                raise CommandFailed(
                    f"{name} still loads {wanted} after {timeout:g} s; see: deployments show {name}"
                )
            time.sleep(_POLL_S)
            found = service.get(_path(name))
    if found["status"] != "active" or found["version"] != wanted:
        pending = found["pending"] or {}
        reason = pending.get("error") or f"it is {found['status']} with {found['version']}"
        raise CommandFailed(f"{name} does not serve {wanted}: {reason}")
    return found


def _is_moving(found: dict[str, Any], wanted: str) -> bool:
    """Also where the version that is served starts again, as after a restart of the service."""
    starts_again = found["version"] == wanted and found["status"] == "starting"
    return starts_again or _starting(found) == wanted


def _starting(found: dict[str, Any]) -> str | None:
    pending = found["pending"]
    return str(pending["version"]) if pending and pending["status"] == "starting" else None


def _path(name: str) -> str:
    return f"/v1/deployments/{quote(name, safe='')}"
