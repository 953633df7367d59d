import json
import re
from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import quote

import typer

from session.cli.commands.versions import Written
from session.cli.errors import CommandFailed
from session.cli.output import AsJson, Row, note, say, show_fields, show_rows, waiting
from session.cli.references import parse_source
from session.cli.service import Service

_FIELDS = ("field", "before", "after")
_METRICS = ("name", "before", "after", "difference")
_TENSORS = ("name", "shape", "before", "after", "difference", "relative")


def diff(
    before: Written,
    after: Written,
    *,
    tensors: Annotated[
        bool, typer.Option("--tensors", help="How far each tensor moved; reads the weights.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what is different in the second version from the first."""
    old, new = parse_source(before), parse_source(after)
    path = f"{new.path}/diff"
    with Service.from_environment() as service:
        if tensors:
            asked = f"{path}?tensors=true&against={quote(str(old), safe='')}"
            return _show_tensors(service, asked, f"{old} and {new}", as_json)
        found = service.get(path, against=str(old))
    if as_json:
        return show_fields(found, as_json=True)
    _show("configuration", found["configuration"], _FIELDS)
    _show("metrics", found["metrics"], _METRICS)
    _show("usage", found["usage"], _FIELDS)
    _show(f"files ({found['files']['same']} are the same)", _files(found["files"]), _FIELDS)


def _show(title: str, rows: list[Any], columns: tuple[str, ...]) -> None:
    note(f"{title}:")
    show_rows(rows, columns, as_json=False)


def _files(found: dict[str, Any]) -> list[dict[str, Any]]:
    sides = [(each["before"], each["after"]) for each in found["changed"]]
    sides += [(None, file) for file in found["added"]]
    sides += [(file, None) for file in found["removed"]]
    return [
        {
            "field": (one or other)["path"],
            "before": one and one["sha256"][:12],
            "after": other and other["sha256"][:12],
        }
        for one, other in sides
    ]


def _show_tensors(service: Service, path: str, what: str, as_json: bool) -> None:
    """For a program, each line as it comes; the last one says whether that is all."""
    rows: list[Any] = []
    nothing = "nothing was changed; run it again to compare the weights"
    with waiting(f"comparing {what}", interrupted=nothing), service.stream(path) as pieces:
        for line in _lines(pieces):
            rows.append(json.loads(line))
            if as_json:
                say(line)
    last = rows.pop() if rows else {}
    if not as_json:
        show_rows(sorted(rows, key=_place), _TENSORS, as_json=False)
    if last.get("line") != "total":
        raise CommandFailed(last.get("detail") or "the answer was cut; run it again")
    note(f"in all: {last['difference']:g} over {last['compared']} of {last['tensors']} tensors")


def _place(row: Row) -> list[tuple[str, int]]:
    """Layer 10 comes after layer 9."""
    pieces = re.findall("([^0-9]*)([0-9]*)", row["name"])
    return [(text, int(number or -1)) for text, number in pieces]


def _lines(pieces: Iterator[bytes]) -> Iterator[str]:
    held = b""
    for piece in pieces:
        *whole, held = (held + piece).split(b"\n")
        yield from (line.decode() for line in whole)
