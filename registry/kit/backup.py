"""A copy of a SQLite database, whole while others write to it. PostgreSQL has its own program."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import make_url

from registry.kit.errors import Kind, ServiceError
from registry.kit.migrate import DatabaseUnusable


class NotOurs(ServiceError):
    kind = Kind.precondition_failed

    def __init__(self) -> None:
        super().__init__("the database is PostgreSQL, which is backed up with pg_dump")


class BackupExists(ServiceError):
    kind = Kind.conflict

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is there already, and nothing was overwritten")


class NoSuchDirectory(ServiceError):
    kind = Kind.invalid

    def __init__(self, path: Path) -> None:
        super().__init__(f"there is no directory {path}")


def back_up(url: str, target: Path) -> int:
    """Its size. The copy is one moment of the database, and only its owner may read it."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        raise NotOurs
    if target.exists():
        raise BackupExists(target)
    if not target.parent.is_dir():
        raise NoSuchDirectory(target.parent)
    aside = target.with_name(f".{target.name}.partial")
    aside.unlink(missing_ok=True)
    try:
        os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        _copy(Path(parsed.database).absolute(), aside)
        os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)
    return target.stat().st_size


def _copy(source: Path, target: Path) -> None:
    """In one read transaction, which no writer waits for. The write-ahead log is part of it."""
    try:
        with closing(sqlite3.connect(f"{source.as_uri()}?mode=rw", uri=True)) as connection:
            connection.execute("VACUUM INTO ?", (str(target),))
    except sqlite3.Error as error:
        raise DatabaseUnusable(str(source), str(error)) from None
    descriptor = os.open(target, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
