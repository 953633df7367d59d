import typer

from session.cli.output import AsJson, show_fields, show_rows

app = typer.Typer(no_args_is_help=True, help="Accounts: each owns its sessions and versions.")


@app.command("create")
def create_account(name: str, as_json: AsJson = False) -> None:
    """Create an account. It can do nothing until it has a token."""
    from session.cli import administration

    show_fields(administration.create_account(name), as_json=as_json)


@app.command("list")
def list_accounts(as_json: AsJson = False) -> None:
    """List the accounts."""
    from session.cli import administration

    show_rows(administration.list_accounts(), ("id", "name", "created_at"), as_json=as_json)
