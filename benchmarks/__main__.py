"""Runs benchmarks, each a module beside this one, and prints one table a benchmark.

    python -m benchmarks [--json FOLDER] [NAME ...]

A benchmark is a module with `run() -> Iterable[Row]`; its first line is the table's title. One
name a row: ours beside a peer's in the same unit, and the ratio, above 1 where ours is better.
With --json, each also writes FOLDER/NAME.json.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.rows import Row

_NOT_BENCHMARKS = frozenset(
    (
        *("__init__", "__main__", "big_file", "plain_training", "rows", "servers", "smollm2"),
        *("turns", "vllm"),
    )
)


def names() -> list[str]:
    files = Path(__file__).parent.glob("*.py")
    return sorted({file.stem for file in files} - _NOT_BENCHMARKS)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", type=Path, metavar="FOLDER")
    given = parser.parse_args(arguments)
    known = names()
    if unknown := sorted(set(given.names) - set(known)):
        Console(stderr=True).print(f"no benchmark {', '.join(unknown)}; there are {known}")
        return 2
    console = Console(width=None if sys.stdout.isatty() else 120)
    for name in given.names or known:
        module = import_module(f"benchmarks.{name}")
        title = str(module.__doc__).splitlines()[0]
        rows = list(module.run())
        console.print(_table(f"{name}: {title}", rows))
        if given.json is not None:
            _write(given.json / f"{name}.json", title, rows)
    return 0


def _write(file: Path, title: str, rows: Iterable[Row]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    measured = [{**asdict(row), "ratio": row.ratio} for row in rows]
    file.write_text(json.dumps({"title": title, "rows": measured}, indent=2) + "\n")


def _table(title: str, rows: Iterable[Row]) -> Table:
    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    for column in ("what", "peer", "theirs", "ours", "unit", "ratio", "note"):
        is_number = column in ("theirs", "ours", "ratio")
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*row.cells())
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
