from typing import Annotated, Any

import typer

from session.cli.commands.versions import Number, Why, Written
from session.cli.errors import CommandFailed
from session.cli.output import AsJson, agreed, show_outcome, show_rows, size_words
from session.cli.references import Reference, parse_reference
from session.cli.service import Service

_HOLDS = ("kind", "name", "holder", "why", "created_at")
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def rm(
    group: Written,
    version: Number = None,
    *,
    yes: Yes = False,
    purge: Annotated[
        bool, typer.Option("--purge", help="Remove its files now, and for good; for admins.")
    ] = False,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Delete a version. Until its files are purged it can be restored."""
    with Service.from_environment() as service:
        found = _find(service, group, version)
        size, path = size_words(found["size"]), _path(found)
        ends = " for good" if purge else ""
        if not yes and not agreed(f"delete {found['ref']} ({size}){ends}?"):
            raise CommandFailed("nothing is deleted")
        if not (purge and found["deleted_at"]):
            found = service.change("DELETE", path, None, revision=found["revision"], why=why)
        line = f"{found['ref']} is deleted; it can be restored until {found['purge_at']}"
        if purge:
            found = service.change("POST", f"{path}/purge", None, revision=found["revision"])
            line = f"{found['ref']} is purged: {size_words(found['freed'])} are free"
    show_outcome(line, found, as_json=as_json)


def restore(
    group: Written, version: Number = None, *, why: Why = "", as_json: AsJson = False
) -> None:
    """Bring a deleted version back, if its files are not purged yet."""
    with Service.from_environment() as service:
        found = _find(service, group, version)
        path = f"{_path(found)}/restore"
        found = service.change("POST", path, None, revision=found["revision"], why=why)
    show_outcome(f"{found['ref']} is back", found, as_json=as_json)


def hold(group: Written, version: Number = None, *, why: Why = "", as_json: AsJson = False) -> None:
    """Keep a version from being deleted, until you release it."""
    with Service.from_environment() as service:
        found = _find(service, group, version)
        made = service.put(f"{_path(found)}/hold", {"why": why})
    show_outcome(f"{found['ref']} is held by {made['name']}", made, as_json=as_json)


def release(
    group: Written,
    version: Number = None,
    *,
    holder: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="Whose hold, if not yours; for admins.")
    ] = None,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """End your hold on a version."""
    with Service.from_environment() as service:
        found = _find(service, group, version)
        service.delete(f"{_path(found)}/hold", holder=holder, why=why)
    show_outcome(f"{found['ref']} is released", found, as_json=as_json)


def holds(group: Written, version: Number = None, as_json: AsJson = False) -> None:
    """List what keeps a version from being deleted."""
    with Service.from_environment() as service:
        rows = service.get(f"{parse_reference(group, version).path}/holds")["data"]
    show_rows(rows, _HOLDS, as_json=as_json)


def _find(service: Service, group: str, version: str | None) -> dict[str, Any]:
    found: dict[str, Any] = service.get(parse_reference(group, version).path)
    return found


def _path(found: dict[str, Any]) -> str:
    """Of the very version that was looked up, wherever an alias points by now."""
    return Reference(found["group"], found["version"]).path
