"""What is on its way into the embedded store: aside, where no listing of objects shows it.

Each arrival has a folder that names its key. A process that ends leaves the folder, and another
one goes on with it or removes it.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from secrets import token_hex

from registry.artifacts.errors import MultipartNotFound
from registry.artifacts.parts import require_whole
from registry.artifacts.store import CHUNK, Part, Progress, Unfinished

INCOMING = ".incoming"
_KEY = "key"
_ID = re.compile("[0-9a-f]{32}")
_PART = re.compile("[0-9]{5}")


class Incoming:
    def __init__(self, root: Path) -> None:
        self._folder = root / INCOMING

    def begin(self, key: str) -> str:
        arrival = token_hex(16)
        folder = self._folder / arrival
        folder.mkdir(parents=True)
        try:
            (folder / _KEY).write_text(key)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return arrival

    @contextmanager
    def aside(self, key: str) -> Iterator[Path]:
        """A path for the whole object, which is gone afterwards unless it was moved."""
        folder = self._folder / self.begin(key)
        try:
            yield folder / "data"
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def put_part(self, key: str, arrival: str, number: int, data: bytes) -> Part:
        folder = self._require(key, arrival)
        aside, path = folder / token_hex(16), folder / f"{number:05}"
        try:
            aside.write_bytes(data)
            sync(aside)
            aside.replace(path)
            return _part(path)
        except FileNotFoundError:  # aborted meanwhile
            raise MultipartNotFound(key) from None
        finally:
            aside.unlink(missing_ok=True)

    def parts(self, key: str, arrival: str) -> list[Part]:
        try:
            return _parts(self._require(key, arrival))
        except FileNotFoundError:  # over since
            raise MultipartNotFound(key) from None

    @contextmanager
    def joined(self, key: str, arrival: str, parts: Sequence[Part]) -> Iterator[Path]:
        """The parts as one file. The arrival is over with the block, unless that fails."""
        folder = self._require(key, arrival)
        aside = folder / token_hex(16)
        try:
            require_whole(key, parts, _parts(folder))
            with aside.open("wb") as whole:
                for part in parts:
                    with (folder / f"{part.number:05}").open("rb") as file:
                        shutil.copyfileobj(file, whole, CHUNK)
            yield aside
        except FileNotFoundError:  # finished or aborted meanwhile, by another
            raise MultipartNotFound(key) from None
        finally:
            aside.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)

    def abort(self, key: str, arrival: str) -> None:
        try:
            shutil.rmtree(self._require(key, arrival), ignore_errors=True)
        except MultipartNotFound:
            return

    def unfinished(self, prefix: str) -> list[Unfinished]:
        found = (_unfinished(folder) for folder in self._folder.glob("*/"))
        listed = [each for each in found if each is not None and each.key.startswith(prefix)]
        return sorted(listed, key=lambda each: (each.key, each.started))

    def _require(self, key: str, arrival: str) -> Path:
        folder = self._folder / arrival
        try:
            if _ID.fullmatch(arrival) and (folder / _KEY).read_text() == key:
                return folder
        except FileNotFoundError:
            pass
        raise MultipartNotFound(key)


def copy_bytes(source: BufferedReader, target: Path, progress: Progress | None) -> str:
    """The SHA-256 of what was copied."""
    digest = hashlib.sha256()
    with target.open("wb") as copy:
        while data := source.read(CHUNK):
            copy.write(data)
            digest.update(data)
            if progress is not None:
                progress(len(data))
    return digest.hexdigest()


def sync(path: Path) -> None:
    """To the disk, not only to the kernel: the row that names the object comes after it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parts(folder: Path) -> list[Part]:
    return [_part(path) for path in sorted(folder.iterdir()) if _PART.fullmatch(path.name)]


def _part(path: Path) -> Part:
    """A part that is put again is another file, so it has another tag."""
    found = path.stat()
    return Part(int(path.name), found.st_size, f"{found.st_ino:x}-{found.st_mtime_ns:x}")


def _unfinished(folder: Path) -> Unfinished | None:
    """None where it is over since it was listed, or has hardly begun."""
    try:
        key = (folder / _KEY).read_text()
        started = datetime.fromtimestamp((folder / _KEY).stat().st_mtime, UTC)
        size = sum(path.stat().st_size for path in folder.iterdir() if path.name != _KEY)
    except FileNotFoundError:
        return None
    return Unfinished(key, folder.name, started, size)
