"""What the settings name, opened: the one place where a process meets its database and store."""

from pathlib import Path

from registry.artifacts.local import LocalBlobStore
from registry.artifacts.store import BlobStore
from registry.kit.db import Database
from registry.settings import Settings


def open_database(settings: Settings) -> Database:
    return Database.connect(
        settings.database_url(), busy_timeout_s=settings.database.busy_timeout_s
    )


def scratch_path(settings: Settings) -> Path:
    """Where a worker puts files for a moment."""
    return settings.cache_path() / "worker"


def open_store(settings: Settings) -> BlobStore:
    return LocalBlobStore(settings.objects_path())
