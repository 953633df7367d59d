from collections.abc import Sequence
from typing import Annotated

import typer

from session.cli import completion
from session.cli.output import AsJson, show_fields, show_rows
from session.cli.service import Service
from session.client.sessions import session_path

Tokens = dict[str, int]
_CATEGORIES = ("train", "prefill", "cached_prefill", "sample")


def usage(
    session: Annotated[
        str | None,
        typer.Option(help="Only this session's: name or id.", autocompletion=completion.sessions),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the tokens metered so far: by session, and in all."""
    with Service.from_environment() as service:
        if session is not None:
            known = [service.get(session_path(session))]
        else:
            known = [] if as_json else service.pages("/v1/sessions")
        only = known[0]["id"] if session is not None else None
        totals = service.get("/v1/usage/totals", session=only)
    if as_json:
        return show_fields(totals, as_json=True)
    names = {row["id"]: row["name"] for row in known}
    rows = [
        {"session": row["session"], "name": names.get(row["session"]), **row["tokens"]}
        for row in totals["sessions"]
    ]
    others = _less(totals["tokens"], [row["tokens"] for row in totals["sessions"]])
    if any(others.values()):
        rows.append({"session": "outside sessions", **others})
    rows.append({"session": "total", **totals["tokens"]})
    show_rows(rows, ("session", "name", *_CATEGORIES), as_json=False)


def _less(total: Tokens, parts: Sequence[Tokens]) -> Tokens:
    """What deployments, versions and base models were asked for belongs to no session."""
    return {key: value - sum(part[key] for part in parts) for key, value in total.items()}
