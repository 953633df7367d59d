from typing import Annotated

import typer

from session.cli.output import AsJson, show_fields, show_rows
from session.cli.service import Service

_CATEGORIES = ("train", "prefill", "cached_prefill", "sample")


def usage(
    session: Annotated[str | None, typer.Option(help="Only this session's, by id.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the tokens metered so far: by session, and in all."""
    with Service.from_environment() as service:
        totals = service.get("/v1/usage/totals", session=session)
    if as_json:
        return show_fields(totals, as_json=True)
    rows = [{"session": row["session"], **row["tokens"]} for row in totals["sessions"]]
    rows.append({"session": "total", **totals["tokens"]})
    show_rows(rows, ("session", *_CATEGORIES), as_json=False)
