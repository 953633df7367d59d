from typing import Annotated, Any

import typer

from session.cli import completion
from session.cli.choices import Approval, Kind, Stage
from session.cli.errors import CommandFailed
from session.cli.expiry import now, parse_expiry, parse_moment
from session.cli.output import AsJson, note, say, show_fields, show_outcome, show_rows, waiting
from session.cli.references import Reference, group_path, parse_reference, parse_source
from session.cli.service import Service
from session.client.sessions import session_path

app = typer.Typer(no_args_is_help=True, help="Versions of weights.")
_COLUMNS = (
    *("ref", "kind", "step", "parent", "size", "approval", "stage", "aliases", "tags"),
    *("created_at", "description"),
)
_DELETION = {"deleted_at", "deleted_by", "deleted_why", "purge_at", "purged_at", "freed"}
_POLL_S = 20
Group = Annotated[str, typer.Argument(metavar="GROUP", autocompletion=completion.groups)]
Written = Annotated[
    str, typer.Argument(metavar="GROUP[@VERSION|:ALIAS]", autocompletion=completion.references)
]
Number = Annotated[
    str | None,
    typer.Argument(metavar="VERSION", show_default=False, autocompletion=completion.versions),
]
Why = Annotated[str, typer.Option(help="The reason, kept in the history.")]


@app.command("list")
def list_versions(
    group: Group,
    kind: Annotated[Kind | None, typer.Option(help="Of this kind.")] = None,
    stage: Annotated[Stage | None, typer.Option(help="In this stage.")] = None,
    approval: Annotated[Approval | None, typer.Option(help="Decided on so.")] = None,
    alias: Annotated[
        str | None,
        typer.Option(help="The one this alias points at.", autocompletion=completion.aliases),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="With this tag.")] = None,
    text: Annotated[str | None, typer.Option(help="With this in the description.")] = None,
    session: Annotated[
        str | None,
        typer.Option(
            help="Saved by this session, by name or id.", autocompletion=completion.sessions
        ),
    ] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Made then or later.")] = None,
    before: Annotated[str | None, typer.Option(metavar="TIME", help="Made earlier.")] = None,
    deleted: Annotated[
        bool, typer.Option("--deleted", help="Deleted ones only: until purge_at they come back.")
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="Not only the newest fifty.")] = False,
    as_json: AsJson = False,
) -> None:
    """List a group's versions, newest first: those that match all that is asked for."""
    path = f"{group_path(group)}/versions"
    wanted = {
        **{"kind": kind, "stage": stage, "approval": approval, "alias": alias, "tag": tag},
        **{"text": text, "deleted": deleted or None},
        "created_after": parse_moment(since).isoformat() if since else None,
        "created_before": parse_moment(before).isoformat() if before else None,
    }
    with Service.from_environment() as service:
        if session is not None:
            wanted["session"] = service.get(session_path(session))["id"]
        if every:
            rows, more = service.pages(path, **wanted), False
        else:
            rows, more = service.page(path, **wanted)
    columns = (*_COLUMNS, "deleted_at", "purge_at", "deleted_why") if deleted else _COLUMNS
    show_rows(rows, columns, as_json=as_json)
    if more:
        note("older ones are not shown; --all lists them")


@app.command("edit")
def edit_version(
    group: Written,
    version: Number = None,
    *,
    description: Annotated[str | None, typer.Option(help="The new description.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Add this tag; may be repeated.")] = None,
    untag: Annotated[list[str] | None, typer.Option(help="Take this tag away.")] = None,
    stage: Annotated[Stage | None, typer.Option(help="Its new stage.")] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="WHEN", help="30d, 12h, 2030-01-31, or never.")
    ] = None,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Change what is said of a version. What was trained never changes."""
    reference = parse_reference(group, version)
    with Service.from_environment() as service:
        found = service.get(reference.path)
        changes: dict[str, Any] = {}
        if description is not None:
            changes["description"] = description
        if tag or untag:
            changes["tags"] = sorted({*found["tags"], *(tag or ())} - {*(untag or ())})
        if stage is not None:
            changes["stage"] = stage
        if expires is not None:
            ends = None if expires == "never" else parse_expiry(expires, at=now())
            changes["expires_at"] = ends.isoformat() if ends else None
        if not changes:
            raise typer.BadParameter("say what to change: see --help")
        path = Reference(reference.group, found["version"]).path
        changes["why"] = why
        found = service.change("PATCH", path, changes, revision=found["revision"])
    show_outcome(f"{found['ref']} is changed", found, as_json=as_json)


@app.command("log", no_args_is_help=True)
def log_metrics(
    reference: Written,
    numbers: Annotated[list[str], typer.Argument(metavar="NAME=NUMBER...")],
    *,
    step: Annotated[int | None, typer.Option(help="Else the version's own.")] = None,
    as_json: AsJson = False,
) -> None:
    """Add numbers to a version, such as those of an evaluation."""
    written = parse_reference(reference)
    body = {"metrics": dict(map(_number, numbers)), "step": step}
    with Service.from_environment() as service:
        found = service.get(written.path)
        path = Reference(written.group, found["version"]).path
        rows = service.post(f"{path}/metrics", body)["data"]
    show_outcome(f"{found['ref']}: {len(rows)} logged", rows, as_json=as_json)


@app.command("metrics")
def list_metrics(
    group: Written,
    version: Number = None,
    *,
    name: Annotated[str | None, typer.Option(help="Only those of this name.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the numbers that were added to a version since its save, oldest first."""
    reference = parse_source(group, version)
    with Service.from_environment() as service:
        rows = service.pages(f"{reference.path}/metrics", name=name)
    show_rows(rows, ("name", "step", "value", "at"), as_json=as_json)


@app.command("files")
def list_files(group: Written, version: Number = None, as_json: AsJson = False) -> None:
    """List a version's files with their sizes and digests."""
    reference = parse_source(group, version)
    with Service.from_environment() as service:
        rows = service.get(f"{reference.path}/files")["data"]
    show_rows(rows, ("path", "size", "sha256"), as_json=as_json)


def show(
    group: Written,
    version: Number = None,
    *,
    kind: Annotated[
        Kind | None, typer.Option(help="Of a GROUP alone, the newest of this kind.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show one version; of a GROUP alone, the newest."""
    reference = parse_source(group, version)
    path = reference.path
    if kind is not None:
        if reference != Reference(group, "latest"):
            raise typer.BadParameter("--kind goes with a GROUP alone")
        path = f"{group_path(group)}/latest"
    with Service.from_environment() as service:
        found = service.get(path, kind=kind)
    show_fields(found if as_json else _told(found), as_json=as_json)


def _told(found: dict[str, Any]) -> dict[str, Any]:
    """Of one that is not deleted, nothing about deletion."""
    is_live = found.get("deleted_at") is None
    return {name: value for name, value in found.items() if not (is_live and name in _DELETION)}


def approve(
    group: Written, version: Number = None, *, why: Why = "", as_json: AsJson = False
) -> None:
    """Approve a version."""
    _decide(parse_reference(group, version), "approved", why, as_json)


def reject(
    group: Written, version: Number = None, *, why: Why = "", as_json: AsJson = False
) -> None:
    """Reject a version: nothing promotes it until it is approved."""
    _decide(parse_reference(group, version), "rejected", why, as_json)


def _decide(reference: Reference, approval: str, why: str, as_json: bool) -> None:
    """About the very version that was looked up, and only if nobody has changed it since."""
    with Service.from_environment() as service:
        found = service.get(reference.path)
        path = f"{Reference(reference.group, found['version']).path}/approval"
        wish = {"approval": approval, "why": why}
        found = service.change("PUT", path, wish, revision=found["revision"])
    show_outcome(f"{found['ref']} is {approval}", found, as_json=as_json)


def merge(group: Written, version: Number = None, as_json: AsJson = False) -> None:
    """Make a version with full weights, which can be served, out of an adapter or a state."""
    reference = parse_reference(group, version)
    with Service.from_environment() as service:
        found = service.post(f"{reference.path}/merge")
        on = f"the merge of {reference} goes on; see: modelyard versions list {reference.group}"
        with waiting(f"merging {reference}", interrupted=on):
            while found["status"] in {"pending", "running"}:
                found = service.get(f"/v1/merges/{found['id']}", wait=_POLL_S)
    if found["status"] == "failed":
        raise CommandFailed(f"merging {reference} failed: {found['error']}")
    if as_json:
        return show_fields(found, as_json=True)
    say(found["version"])


def _number(written: str) -> tuple[str, float]:
    name, _, value = written.rpartition("=")
    try:
        return name, float(value)
    except ValueError:
        raise typer.BadParameter(f"{written!r} is not NAME=NUMBER, as accuracy=0.91") from None
