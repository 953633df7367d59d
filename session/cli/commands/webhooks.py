from typing import Annotated, Any
from urllib.parse import quote

import typer

from session.cli import completion
from session.cli.choices import DeliveryStatus, EventType
from session.cli.output import AsJson, note, say, show_fields, show_outcome, show_rows
from session.cli.service import Service

app = typer.Typer(no_args_is_help=True, help="Where the service tells of what happens. For admins.")
_COLUMNS = ("id", "url", "types", "enabled", "why_disabled", "description", "created_at")
_DELIVERIES = ("id", "event", "type", "status", "attempts", "next_at", "last_status", "last_error")
Named = Annotated[str, typer.Argument(metavar="WEBHOOK", autocompletion=completion.webhooks)]
_Types = Annotated[
    list[EventType] | None, typer.Option("--type", help="Only this type; may be repeated.")
]
_Status = Annotated[DeliveryStatus | None, typer.Option(help="Only these.")]


@app.command("list")
def list_webhooks(as_json: AsJson = False) -> None:
    """List the webhooks, without their secrets."""
    with Service.from_environment() as service:
        rows = service.pages("/v1/webhooks")
    show_rows(rows if as_json else [_said(row) for row in rows], _COLUMNS, as_json=as_json)


@app.command("create")
def create_webhook(
    url: str,
    types: _Types = None,
    description: Annotated[str, typer.Option(help="What it is for.")] = "",
    as_json: AsJson = False,
) -> None:
    """Have events sent to URL, and print the secret that verifies them, which is shown once."""
    wish = {"url": url, "types": types or [], "description": description}
    with Service.from_environment() as service:
        made = service.post("/v1/webhooks", wish)
    _show_secret(
        f"{made['id']} is told of {' '.join(made['types']) or 'every event'}", made, as_json
    )


@app.command("show")
def show_webhook(webhook: Named, as_json: AsJson = False) -> None:
    """Show one webhook, without its secret."""
    with Service.from_environment() as service:
        found = service.get(_path(webhook))
    show_fields(found if as_json else _said(found), as_json=as_json)


@app.command("edit")
def edit_webhook(
    webhook: Named,
    *,
    url: Annotated[str | None, typer.Option(help="Where it leads from now on.")] = None,
    types: _Types = None,
    every_type: Annotated[
        bool, typer.Option("--all-types", help="Every type, also those to come.")
    ] = False,
    description: Annotated[str | None, typer.Option(help="What it is for.")] = None,
    enabled: Annotated[
        bool | None, typer.Option("--enable/--disable", help="Whether it is sent anything.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change a webhook; what is left out stays. Enabled again, it is sent what waited for it."""
    if types and every_type:
        raise typer.BadParameter("give --type or --all-types, not both")
    wish = {"url": url, "description": description, "enabled": enabled}
    changes: dict[str, Any] = {name: value for name, value in wish.items() if value is not None}
    if types or every_type:
        changes["types"] = types or []
    if not changes:
        raise typer.BadParameter("say what to change: see --help")
    with Service.from_environment() as service:
        found = service.patch(_path(webhook), changes)
    show_outcome(f"{webhook} is changed", found, as_json=as_json)


@app.command("test")
def send_test(webhook: Named, as_json: AsJson = False) -> None:
    """Send a webhook an event of the type webhook.test."""
    with Service.from_environment() as service:
        sent = service.post(f"{_path(webhook)}/test")
    line = f"{sent['id']} is on its way; see: modelyard webhooks deliveries {webhook}"
    show_outcome(line, sent, as_json=as_json)


@app.command("rotate")
def rotate_secret(webhook: Named, as_json: AsJson = False) -> None:
    """Give a webhook a new secret and print it; for a day, the old one signs beside it."""
    with Service.from_environment() as service:
        made = service.post(f"{_path(webhook)}/rotate")
    _show_secret(f"{webhook} signs with a new secret", made, as_json)


@app.command("delete")
def delete_webhook(webhook: Named, as_json: AsJson = False) -> None:
    """Delete a webhook, and what was on its way to it."""
    with Service.from_environment() as service:
        found = service.get(_path(webhook))
        service.delete(_path(webhook))
    show_outcome(f"{webhook} is deleted; it was {found['url']}", found, as_json=as_json)


@app.command("deliveries")
def list_deliveries(webhook: Named, status: _Status = None, as_json: AsJson = False) -> None:
    """List what was sent to a webhook, newest first."""
    with Service.from_environment() as service:
        rows: list[Any] = service.pages(f"{_path(webhook)}/deliveries", status=status)
    show_rows(rows, _DELIVERIES, as_json=as_json)


@app.command("redeliver")
def redeliver(webhook: Named, delivery: str, as_json: AsJson = False) -> None:
    """Send again what was given up, or was delivered already."""
    path = f"{_path(webhook)}/deliveries/{quote(delivery, safe='')}/redeliver"
    with Service.from_environment() as service:
        found = service.post(path)
    show_outcome(f"{delivery} is sent again", found, as_json=as_json)


def _path(webhook: str) -> str:
    return f"/v1/webhooks/{quote(webhook, safe='')}"


def _said(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "types": " ".join(found["types"]) or "all"}


def _show_secret(line: str, made: dict[str, Any], as_json: bool) -> None:
    """Alone on stdout, for a script to take."""
    if as_json:
        return show_fields(made, as_json=True)
    note(f"{line}; its secret:")
    say(made["secret"])
