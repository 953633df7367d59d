"""The list of a version's files, and the digest that stands for all of them."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from registry.artifacts.errors import ArtifactRefused
from registry.artifacts.names import validate_artifact_name


@dataclass(frozen=True, slots=True, order=True)
class FileEntry:
    path: str
    size: int
    sha256: str


def describe(directory: Path) -> list[FileEntry]:
    """Every file below `directory`, sorted by path; anything but plain files is refused."""
    return [_entry(directory, path) for path in list_files(directory)]


def list_files(directory: Path) -> list[str]:
    """Their paths below `directory`, sorted, without a look into them."""
    return sorted(_name(directory, path) for path in directory.rglob("*") if not _is_folder(path))


def manifest_digest(files: Iterable[FileEntry]) -> str:
    """The same for the same files, whatever order they come in."""
    listed = [[file.path, file.size, file.sha256] for file in sorted(files)]
    text = json.dumps(listed, ensure_ascii=False, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _name(directory: Path, path: Path) -> str:
    name = path.relative_to(directory).as_posix()
    if path.is_symlink() or not path.is_file():
        raise ArtifactRefused(name, "is not a plain file")
    return validate_artifact_name(name)


def _entry(directory: Path, name: str) -> FileEntry:
    path = directory / name
    return FileEntry(name, path.stat().st_size, hash_file(path))
