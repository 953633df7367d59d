from typing import Annotated, Any

import typer

from session.cli.commands.deletion import Yes
from session.cli.commands.versions import Group
from session.cli.errors import CommandFailed
from session.cli.output import (
    AsJson,
    agreed,
    note,
    show_fields,
    show_outcome,
    show_rows,
    size_words,
)
from session.cli.references import group_path
from session.cli.service import Service

app = typer.Typer(no_args_is_help=True, help="Which versions of a group stay by themselves.")
_COLUMNS = ("ref", "size", "action", "reason")
_Smallest = Annotated[
    str | None, typer.Option("--keep-smallest", metavar="METRIC", help="By this metric.")
]
_Largest = Annotated[
    str | None, typer.Option("--keep-largest", metavar="METRIC", help="By this metric.")
]


@app.command("show")
def show_policy(group: Group, as_json: AsJson = False) -> None:
    """Show a group's policy."""
    with Service.from_environment() as service:
        show_fields(service.get(_path(group)), as_json=as_json)


@app.command("set")
def set_policy(
    group: Group,
    *,
    keep_last: Annotated[int | None, typer.Option(min=1, help="The newest N.")] = None,
    keep_every: Annotated[
        int | None, typer.Option(min=1, help="Those whose number N divides.")
    ] = None,
    smallest: _Smallest = None,
    largest: _Largest = None,
    best: Annotated[
        int | None, typer.Option("--best", min=1, help="How many of those; else one.")
    ] = None,
    max_age_days: Annotated[
        int | None, typer.Option("--max-age-days", min=1, help="Those that are younger.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would go, and set nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Set a group's policy: a version stays if any rule keeps it; the others are deleted."""
    if smallest is not None and largest is not None:
        raise typer.BadParameter("give one of --keep-smallest and --keep-largest")
    if best is not None and smallest is None and largest is None:
        raise typer.BadParameter("--best needs --keep-smallest or --keep-largest")
    if all(rule is None for rule in (keep_last, keep_every, smallest, largest, max_age_days)):
        raise typer.BadParameter(
            "give a rule: --keep-last, --keep-every, --keep-smallest, --keep-largest or "
            "--max-age-days; modelyard retention clear removes the policy"
        )
    metric, mode = (smallest, "min") if smallest is not None else (largest, "max")
    policy = {
        "keep_last": keep_last,
        "keep_every": keep_every,
        "keep_best": {"metric": metric, "mode": mode, "n": best or 1}
        if metric is not None
        else None,
        "max_age_days": max_age_days,
    }
    with Service.from_environment() as service:
        plan = service.post_long(f"{_path(group)}/apply", policy, dry_run=True)
        if dry_run:
            return _show(plan, as_json=as_json)
        found = service.put(_path(group), policy)
    if plan["warning"]:
        note(f"warning: {plan['warning']}")
    line = f"{group} has a policy: {_words(plan['removed'])} will be deleted within a minute"
    told = {**found, "removes": plan["removed"], "warning": plan["warning"]}
    show_outcome(line, told, as_json=as_json)


@app.command("clear")
def clear_policy(group: Group, as_json: AsJson = False) -> None:
    """Remove a group's policy: everything stays."""
    with Service.from_environment() as service:
        service.delete(_path(group))
    show_outcome(f"{group} keeps everything", {"group": group}, as_json=as_json)


@app.command("apply")
def apply_policy(
    group: Group,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would go, and why.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete now what the policy does not keep, after printing it."""
    path = f"{_path(group)}/apply"
    with Service.from_environment() as service:
        found = service.post_long(path, dry_run=True)
        if dry_run:
            return _show(found, as_json=as_json)
        if not as_json:
            _show(found, as_json=False)
        if found["removed"]["versions"]:
            if not yes and not agreed(f"delete {_words(found['removed'])}?"):
                raise CommandFailed("nothing is deleted")
            found = service.post_long(path, dry_run=False)
        until = _restorable_until(service, group, found["versions"])
    line = f"{_words(found['removed'])} are deleted"
    line += f"; they can be restored until {until}" if until else ""
    show_outcome(line, {**found, "purge_at": until}, as_json=as_json)


def _restorable_until(service: Service, group: str, rows: list[dict[str, Any]]) -> str | None:
    """All have the same grace; the newest was deleted first."""
    first = next((row["version"] for row in rows if row["action"] == "remove"), None)
    if first is None:
        return None
    until: str = service.get(f"{group_path(group)}/versions/{first}")["purge_at"]
    return until


def _show(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        return show_fields(found, as_json=True)
    show_rows(found["versions"], _COLUMNS, as_json=False)
    note(f"to go: {_words(found['removed'])}; to stay: {_words(found['kept'])}")
    if found["cut"]:
        note("there are more than are shown")
    if found["warning"]:
        note(f"warning: {found['warning']}")


def _words(counted: dict[str, int]) -> str:
    return f"{counted['versions']} versions ({size_words(counted['bytes'])})"


def _path(group: str) -> str:
    return f"{group_path(group)}/retention"
