"""Half a file on the disk, which another try, also of another process, goes on with.

It lies hidden beside its place, with a note of which object it is and which of its ranges are
there. Only who holds its lock writes it; a second one at the same place works on a file of its own.
"""

import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

Span = tuple[int, int]


class Partial:
    """Written from many threads, each at its own range."""

    def __init__(self, path: Path, descriptor: int, note: "_Note") -> None:
        self.path = path
        self.is_whole = False
        self._descriptor = descriptor
        self._note = note

    @property
    def spans(self) -> list[Span]:
        return list(self._note.spans())

    @property
    def missing(self) -> list[Span]:
        return [span for span in self.spans if span[0] not in self._note.done]

    @property
    def has_some(self) -> bool:
        return bool(self._note.done)

    def write(self, data: bytes, offset: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._descriptor, view, offset)
            view, offset = view[written:], offset + written

    def done(self, span: Span) -> None:
        self._note.add(span[0])


@contextmanager
def open_partial(target: Path, *, mark: str, size: int, step: int) -> Iterator[Partial]:
    """`mark` is the object's: half a file of another one is begun anew. The block sets `is_whole`,
    and the file appears. Where it does not, what is there stays for the next try."""
    target.parent.mkdir(parents=True, exist_ok=True)
    path, note_path = partial_files(target)
    descriptor = lock(path, _open)
    is_shared = descriptor is not None
    if descriptor is None:
        path = hidden(target, f"{token_hex(8)}.partial")
        descriptor, note_path = _open(path), hidden(target, f"{token_hex(8)}.json")
    note = _Note(note_path, mark, size, step)
    partial = Partial(path, descriptor, note)
    try:
        if os.fstat(descriptor).st_size != size or not note.fits():
            note.begin()
            os.ftruncate(descriptor, 0)
            os.ftruncate(descriptor, size)
        yield partial
    finally:
        if partial.is_whole or not (partial.has_some and is_shared):
            note.forget()  # first: no note may ever speak of another file
            (path.replace(target) if partial.is_whole else path.unlink())
        os.close(descriptor)


def partial_files(target: Path) -> tuple[Path, Path]:
    """Where half of it lies, and the note."""
    return hidden(target, "partial"), hidden(target, "partial.json")


def hidden(target: Path, suffix: str) -> Path:
    """A name beside it, never longer than a file system takes."""
    return target.with_name(f".{target.name.encode()[:200].decode(errors='ignore')}.{suffix}")


def lock(path: Path, opened: Callable[[Path], int]) -> int | None:
    """A descriptor that holds the lock until it is closed; None while another one does."""
    while True:
        descriptor = opened(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if _is_still(path, descriptor):
            return descriptor
        os.close(descriptor)  # it was finished and renamed in between


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


class _Note:
    """First what the file is, then a line for each range that is there."""

    def __init__(self, path: Path, mark: str, size: int, step: int) -> None:
        self._path = path
        self._head = json.dumps({"mark": mark, "size": size, "step": step})
        self._size, self._step = size, step
        self._lock = threading.Lock()
        self.done: set[int] = set()

    def spans(self) -> Iterator[Span]:
        starts = range(0, self._size, self._step)
        return ((start, min(start + self._step, self._size)) for start in starts)

    def fits(self) -> bool:
        try:
            head, *lines = self._path.read_text().splitlines()
            if head != self._head:
                return False
            self.done = {int(line.removesuffix(".")) for line in lines if line.endswith(".")}
        except (OSError, ValueError):
            return False
        return True

    def begin(self) -> None:
        self.done = set()
        self._path.write_text(f"{self._head}\n")

    def add(self, start: int) -> None:
        with self._lock, self._path.open("a") as file:
            file.write(f"{start}.\n")  # the dot: a line that was cut is no number
            self.done.add(start)

    def forget(self) -> None:
        self._path.unlink(missing_ok=True)
