"""What the settings name, opened: the one place where a process meets its database and store."""

import shutil
from pathlib import Path

from registry.artifacts.bucket import Bucket
from registry.artifacts.local import LocalBlobStore
from registry.artifacts.store import BlobStore
from registry.events.targets import Targets
from registry.kit.db import Database
from registry.settings import ObjectStoreSettings, Settings
from registry.uploads.desk import Desk
from registry.uploads.model import Limits


def open_database(settings: Settings) -> Database:
    return Database.connect(
        settings.database_url(), busy_timeout_s=settings.database.busy_timeout_s
    )


def webhook_targets(settings: Settings) -> Targets:
    return Targets(allow_private=settings.webhooks.allow_private)


def scratch_path(settings: Settings) -> Path:
    """Where a worker puts files for a moment."""
    return settings.cache_path() / "worker"


def open_store(settings: Settings) -> BlobStore:
    """boto3 is loaded only where a bucket is set."""
    bucket = bucket_of(settings.objects)
    if bucket is None:
        return LocalBlobStore(settings.objects_path())
    from registry.artifacts.s3 import S3BlobStore

    return S3BlobStore(bucket)


def open_desk(settings: Settings, database: Database, store: BlobStore) -> Desk:
    """Where uploads are taken in. What a process that died has left in its scratch goes."""
    limits = Limits(
        part_bytes=settings.objects.part_bytes,
        files=settings.limits.upload_files,
        bytes=settings.limits.upload_bytes,
        life_s=settings.limits.upload_life_s,
    )
    scratch = settings.cache_path() / "uploads"
    shutil.rmtree(scratch, ignore_errors=True)
    return Desk(database, store, limits=limits, scratch=scratch)


def bucket_of(objects: ObjectStoreSettings) -> Bucket | None:
    if objects.bucket is None:
        return None
    return Bucket(
        name=objects.bucket,
        prefix=objects.prefix,
        endpoint=objects.endpoint,
        public_endpoint=objects.public_endpoint,
        region=objects.region,
        addressing=objects.addressing or ("path" if objects.endpoint else "virtual"),
        checksums=objects.checksums,
        verify=objects.verify,
        ca_bundle=objects.ca_bundle.expanduser().absolute() if objects.ca_bundle else None,
        part_bytes=objects.part_bytes,
        concurrency=objects.concurrency,
        attempts=objects.attempts,
    )
