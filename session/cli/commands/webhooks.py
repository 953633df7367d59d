from typing import Annotated, Any
from urllib.parse import quote

import typer

from session.cli.output import AsJson, note, say, show_fields, show_outcome, show_rows
from session.cli.service import Service

app = typer.Typer(no_args_is_help=True, help="Where the service tells of what happens. For admins.")
_COLUMNS = ("id", "url", "types", "enabled", "why_disabled", "description", "created_at")
_DELIVERIES = ("id", "event", "type", "status", "attempts", "next_at", "last_status", "last_error")
_Types = Annotated[
    list[str] | None, typer.Option("--type", help="Only this type of event; may be repeated.")
]
_Status = Annotated[str | None, typer.Option(help="pending, delivered or dead.")]


@app.command("list")
def list_webhooks(as_json: AsJson = False) -> None:
    """List the webhooks, without their secrets."""
    with Service.from_environment() as service:
        rows = service.pages("/v1/webhooks")
    shown = rows if as_json else [{**row, "types": " ".join(row["types"]) or "all"} for row in rows]
    show_rows(shown, _COLUMNS, as_json=as_json)


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
    if as_json:
        return show_fields(made, as_json=True)
    note(f"{made['id']} is told of {' '.join(made['types']) or 'every event'}; its secret:")
    say(made["secret"])


@app.command("delete")
def delete_webhook(webhook: str, as_json: AsJson = False) -> None:
    """Delete a webhook, and what was on its way to it."""
    with Service.from_environment() as service:
        found = service.get(_path(webhook))
        service.delete(_path(webhook))
    show_outcome(f"{webhook} is deleted; it was {found['url']}", found, as_json=as_json)


@app.command("deliveries")
def list_deliveries(webhook: str, status: _Status = None, as_json: AsJson = False) -> None:
    """List what was sent to a webhook, newest first."""
    with Service.from_environment() as service:
        rows: list[Any] = service.pages(f"{_path(webhook)}/deliveries", status=status)
    show_rows(rows, _DELIVERIES, as_json=as_json)


@app.command("redeliver")
def redeliver(webhook: str, delivery: str, as_json: AsJson = False) -> None:
    """Send again what was given up, or was delivered already."""
    path = f"{_path(webhook)}/deliveries/{quote(delivery, safe='')}/redeliver"
    with Service.from_environment() as service:
        found = service.post(path)
    show_outcome(f"{delivery} is sent again", found, as_json=as_json)


def _path(webhook: str) -> str:
    return f"/v1/webhooks/{quote(webhook, safe='')}"
