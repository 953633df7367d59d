"""`modelyard`: the table of commands, and the one place where a failure becomes a line.

Commands of a client import neither a database nor a web framework, so that they start at once
and work where only the client is installed. What needs more imports it when it runs.
"""

import os
import re
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from registry.kit.errors import ServiceError
from session.cli.commands import (
    accounts,
    aliases,
    deletion,
    deployments,
    differences,
    doctor,
    garbage,
    groups,
    history,
    models,
    processes,
    proofs,
    retention,
    schema,
    sessions,
    tokens,
    transfers,
    usage,
    versions,
    webhooks,
)
from session.cli.errors import CommandFailed, Ending, ending
from session.cli.output import note, say
from session.client.errors import APIError, ModelyardError

_OURS = {"modelyard", "session", "registry", "exporters"}


class _Commands(TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Hidden commands are for our own processes: a slip of the pen does not lead to them."""
        self.commands = {
            name: command
            for name, command in self.commands.items()
            if not command.hidden or name == args[0]
        }
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            note(str(interrupt) or "modelyard: interrupted")
            raise typer.Exit(Ending.interrupted) from None
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what Python writes out at its end
            raise typer.Exit(Ending.unread) from None
        except UnicodeEncodeError as error:
            said = error.object.encode(errors="backslashreplace").decode()
            note(f"modelyard: {said[:80]} is not Unicode text")
            raise typer.Exit(Ending.misused) from None


def _version(wanted: bool) -> None:
    if wanted:
        say(f"modelyard {metadata.version('modelyard')}")
        raise typer.Exit


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Training sessions for language models, and the versions that come of them.",
)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    pass


_RUN = "The service"
app.command(rich_help_panel=_RUN)(processes.serve)
app.command(hidden=True)(processes.worker)
app.command("serve-model", hidden=True)(processes.serve_model)

_OPERATE = "On the service's machine"
app.command(rich_help_panel=_OPERATE)(doctor.doctor)
app.command(rich_help_panel=_OPERATE)(garbage.gc)
app.add_typer(schema.app, name="db", rich_help_panel=_OPERATE)
app.add_typer(models.app, name="models", rich_help_panel=_OPERATE)
app.add_typer(accounts.app, name="accounts", rich_help_panel=_OPERATE)
app.add_typer(tokens.app, name="tokens", rich_help_panel=_OPERATE)

_USE = "From anywhere, with a token"
app.add_typer(sessions.app, name="sessions", rich_help_panel=_USE)
app.add_typer(groups.app, name="groups", rich_help_panel=_USE)
app.add_typer(versions.app, name="versions", rich_help_panel=_USE)
app.command(rich_help_panel=_USE)(versions.show)
app.command(rich_help_panel=_USE)(transfers.push)
app.command(rich_help_panel=_USE)(transfers.pull)
app.command(rich_help_panel=_USE)(versions.approve)
app.command(rich_help_panel=_USE)(versions.reject)
app.add_typer(aliases.app, name="alias", rich_help_panel=_USE)
app.command(rich_help_panel=_USE)(history.history)
app.command(rich_help_panel=_USE)(proofs.lineage)
app.command(rich_help_panel=_USE)(differences.diff)
app.command(rich_help_panel=_USE)(proofs.verify)
app.command(rich_help_panel=_USE)(deletion.rm)
app.command(rich_help_panel=_USE)(deletion.restore)
app.command(rich_help_panel=_USE)(deletion.hold)
app.command(rich_help_panel=_USE)(deletion.release)
app.command(rich_help_panel=_USE)(deletion.holds)
app.add_typer(retention.app, name="retention", rich_help_panel=_USE)
app.command(rich_help_panel=_USE)(versions.merge)
app.command(rich_help_panel=_USE)(deployments.promote)
app.command(rich_help_panel=_USE)(deployments.rollback)
app.add_typer(deployments.app, name="deployments", rich_help_panel=_USE)
app.add_typer(webhooks.app, name="webhooks", rich_help_panel=_USE)
app.command(rich_help_panel=_USE)(usage.usage)


def main(arguments: Sequence[str] | None = None) -> None:
    """Ends the process, with one of the codes of `Ending`."""
    try:
        app(arguments, prog_name="modelyard")
    except (CommandFailed, ModelyardError, ServiceError) as error:
        _end(_words(error), ending(error))
    except OSError as error:
        about = f": {error.filename}" if error.filename else ""
        _end(f"{error.strerror or str(error) or type(error).__name__}{about}")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in _OURS:
            raise
        _end(
            f"this command needs {package}, which is not installed;"
            " run: pip install 'modelyard[server,engine]'"
        )


def _end(line: str, code: Ending = Ending.failed) -> NoReturn:
    note(f"modelyard: {line}")
    raise SystemExit(int(code))


def _words(error: Exception) -> str:
    """Of a refusal without its status, and without where in a request the wrong value stood."""
    if isinstance(error, APIError):
        return re.sub(r"^(query|path)\.", "", error.detail)
    return str(error)
