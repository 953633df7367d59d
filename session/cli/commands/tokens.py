from typing import Annotated

import typer

from registry.access.actor import Role
from registry.kit.clock import now
from session.cli.expiry import parse_expiry
from session.cli.output import AsJson, note, say, show_fields, show_rows

app = typer.Typer(no_args_is_help=True, help="API tokens: each speaks for one account.")
_COLUMNS = ("id", "account", "name", "role", "created_at", "expires_at", "revoked_at")
Expires = Annotated[
    str | None,
    typer.Option(metavar="WHEN", help="A span such as 30d or 12h, or a moment: 2030-01-31."),
]


@app.command("create")
def create_token(
    account: Annotated[str, typer.Option(help="The account's name or id.")],
    name: Annotated[str, typer.Option(help="What the token is for.")],
    role: Annotated[Role, typer.Option()] = Role.member,
    expires: Expires = None,
    as_json: AsJson = False,
) -> None:
    """Create a token and print its secret, which is not kept and cannot be shown again."""
    from session.cli import administration

    ends = parse_expiry(expires, at=now()) if expires else None
    token = administration.create_token(account, name, role, expires_at=ends)
    if as_json:
        return show_fields(token, as_json=True)
    until = f", until {token['expires_at']}" if ends else ""
    note(f"{token['id']} speaks for {token['account']} as {token['role']}{until}; its secret:")
    say(token["secret"])


@app.command("list")
def list_tokens(
    account: Annotated[str | None, typer.Option(help="Only this account's.")] = None,
    as_json: AsJson = False,
) -> None:
    """List tokens, without their secrets."""
    from session.cli import administration

    show_rows(administration.list_tokens(account), _COLUMNS, as_json=as_json)


@app.command("change")
def change_token(
    token_id: str,
    role: Annotated[Role | None, typer.Option()] = None,
    expires: Expires = None,
    as_json: AsJson = False,
) -> None:
    """Give a token another role or another end."""
    from session.cli import administration

    if role is None and expires is None:
        raise typer.BadParameter("nothing to change: give --role, --expires or both")
    ends = parse_expiry(expires, at=now()) if expires else None
    changed = administration.change_token(token_id, role=role, expires_at=ends)
    show_fields(changed, as_json=as_json)


@app.command("revoke")
def revoke_token(token_id: str, as_json: AsJson = False) -> None:
    """End a token for good, at once."""
    from session.cli import administration

    show_fields(administration.revoke_token(token_id), as_json=as_json)
