"""`modelyard`: the table of commands, and the one place where a failure becomes a line.

Commands of a client import neither a database nor a web framework, so that they start at once
and work where only the client is installed. What needs more imports it when it runs.
"""

import re
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from registry.kit.errors import ServiceError
from session.cli.commands import (
    accounts,
    aliases,
    deployments,
    doctor,
    groups,
    history,
    models,
    processes,
    proofs,
    schema,
    sessions,
    tokens,
    usage,
    versions,
)
from session.cli.errors import CommandFailed
from session.cli.output import note
from session.client.errors import APIError, ModelyardError

_OURS = {"modelyard", "session", "registry", "exporters"}


class _Commands(TyperGroup):
    """Hidden commands are for our own processes: a slip of the pen does not lead to them."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self.commands = {
            name: command
            for name, command in self.commands.items()
            if not command.hidden or name == args[0]
        }
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Training sessions for language models, and the versions that come of them.",
)

_RUN = "The service"
app.command(rich_help_panel=_RUN)(processes.serve)
app.command(hidden=True)(processes.worker)
app.command("serve-model", hidden=True)(processes.serve_model)

_OPERATE = "On the service's machine"
app.command(rich_help_panel=_OPERATE)(doctor.doctor)
app.add_typer(schema.app, name="db", rich_help_panel=_OPERATE)
app.add_typer(models.app, name="models", rich_help_panel=_OPERATE)
app.add_typer(accounts.app, name="accounts", rich_help_panel=_OPERATE)
app.add_typer(tokens.app, name="tokens", rich_help_panel=_OPERATE)

_USE = "From anywhere, with a token"
app.add_typer(sessions.app, name="sessions", rich_help_panel=_USE)
app.add_typer(groups.app, name="groups", rich_help_panel=_USE)
app.add_typer(versions.app, name="versions", rich_help_panel=_USE)
app.command(rich_help_panel=_USE)(versions.approve)
app.command(rich_help_panel=_USE)(versions.reject)
app.add_typer(aliases.app, name="alias", rich_help_panel=_USE)
app.command(rich_help_panel=_USE)(history.history)
app.command(rich_help_panel=_USE)(proofs.lineage)
app.command(rich_help_panel=_USE)(proofs.verify)
app.command(rich_help_panel=_USE)(versions.merge)
app.command(rich_help_panel=_USE)(deployments.promote)
app.command(rich_help_panel=_USE)(deployments.rollback)
app.add_typer(deployments.app, name="deployments", rich_help_panel=_USE)
app.command(rich_help_panel=_USE)(usage.usage)


def main(arguments: Sequence[str] | None = None) -> None:
    """Ends the process: 0, 1 for what failed, 2 for a command line that makes no sense."""
    try:
        app(arguments, prog_name="modelyard")
    except (CommandFailed, ModelyardError, ServiceError) as error:
        note(f"modelyard: {_words(error)}")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in _OURS:
            raise
        note(
            f"modelyard: this command needs {package}, which is not installed;"
            " run: pip install 'modelyard[server,engine]'"
        )
    raise SystemExit(1)


def _words(error: Exception) -> str:
    """Of a refusal without its status, and without where in a request the wrong value stood."""
    if isinstance(error, APIError):
        return re.sub(r"^(query|path)\.", "", error.detail)
    return str(error)
