"""How the demo looks in a terminal: numbered headings, short plain lines, bars and tables."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

console = Console(highlight=False)


def heading(text: str) -> None:
    console.print(f"\n[bold]{text}[/bold]")


def line(text: str = "") -> None:
    console.print(f"  {text}", markup=False, soft_wrap=True)


def chat(question: str, answer: str) -> None:
    line(f"Q  {question}")
    line(f"A  {' '.join(answer.split())}")


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """A moving line while something takes seconds; a plain one where nothing can move."""
    if console.is_terminal:
        with console.status(text):
            yield
    else:
        line(text)
        yield


@contextmanager
def training(steps: int) -> Iterator[Callable[[float], None]]:
    """A bar that shows the latest loss. Call what it yields after every step."""
    columns = (
        TextColumn("  training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=steps, loss="...")
        yield lambda loss: progress.update(task, advance=1, loss=f"{loss:.4f}")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    drawn = Table(*columns, box=None, padding=(0, 2, 0, 0))
    for row in rows:
        drawn.add_row(*map(_plain, row))
    with console.capture() as capture:
        console.print(Padding(drawn, (0, 0, 0, 2)))
    for text in capture.get().splitlines():
        print(text.rstrip(), file=console.file)


def _plain(cell: object) -> str:
    match cell:
        case bool():
            return "yes" if cell else "no"
        case None:
            return "-"
        case _:
            return str(cell)


def what_next(seconds: float) -> None:
    heading(f"Done in {seconds:.0f} seconds. What to try next")
    for command, text in (
        ("make serve", "a service that stays, with its data in ~/.modelyard"),
        ("README.md", "the few lines of Python that train on it"),
        ("cookbook/demo/facts.jsonl", "add a fact of your own, and run make demo again"),
        ("docs/index.md", "everything else"),
    ):
        line(f"{command:27} {text}")
