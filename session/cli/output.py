"""What commands print: tables and JSON on stdout, progress and errors on stderr."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

Row = Mapping[str, Any]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C where there is more to say than that: what goes on without us."""


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_UNBOUNDED = 100_000  # columns; a pipe has no edge to wrap at


def say(line: str) -> None:
    typer.echo(line)


def note(line: str) -> None:
    """For the person, not for what reads our stdout."""
    typer.echo(line, err=True)


def size_words(count: int) -> str:
    """As people say it; programs read the number."""
    size, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"


def agreed(question: str) -> bool:
    """Whoever cannot be asked says --yes instead."""
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        note("nobody answers; to do it all the same, add --yes")
        return False


def show_outcome(line: str, found: Any, *, as_json: bool) -> None:
    """What a command has done: a line for a person, the thing itself for a program."""
    if as_json:
        return _print_json(found)
    note(line)


def show_rows(rows: Sequence[Row], columns: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        return _print_json(list(rows))
    if not rows:
        return note("none")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        numeric = all(isinstance(row.get(column), int | None) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    form = brief if sys.stdout.isatty() else str
    for row in rows:
        table.add_row(*(_cell(row.get(column), form) for column in columns))
    _stdout().print(table)


def show_fields(fields: Row, *, as_json: bool) -> None:
    if as_json:
        return _print_json(fields)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(name, _cell(value))
    _stdout().print(table)


@contextmanager
def waiting(line: str, *, interrupted: str) -> Iterator[None]:
    """A spinner with a clock for a person; one plain line for a log. Ctrl-C ends the waiting alone,
    which `interrupted` says."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    if not console.is_terminal:
        note(line)
    try:
        with progress:
            progress.add_task(escape(line), total=None)
            yield
    except KeyboardInterrupt:
        raise Interrupted(interrupted) from None


class _Output(Console):
    def on_broken_pipe(self) -> None:
        """What that means is decided in one place, for tables as for JSON."""
        raise BrokenPipeError


def _stdout() -> Console:
    return _Output(width=None if sys.stdout.isatty() else _UNBOUNDED, highlight=False)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def brief(text: str) -> str:
    """What fits a column of a terminal: moments to the minute, digests by their beginning."""
    if _MOMENT.fullmatch(text):
        return text[:16].replace("T", " ")
    return f"{text[:19]}…" if _DIGEST.fullmatch(text) else text


def _cell(value: Any, form: Callable[[str], str] = str) -> Text:
    """Unprintable characters come from whoever wrote the text; a terminal would obey them."""
    text = form(_words(value))
    return Text("".join(char if char.isprintable() else "?" for char in text))


def _words(value: Any) -> str:
    if value in (None, "", [], {}):
        return "-"
    match value:
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case dict():
            return ", ".join(f"{key}={_words(item)}" for key, item in value.items())
        case list():
            return ", ".join(map(_words, value))
        case _:
            return str(value)
