"""What comes to nothing leaves nothing: parts, objects, and uploads past their time."""

from datetime import datetime

import structlog

from registry.artifacts.store import BlobStore
from registry.kit.clock import now
from registry.kit.db import Database
from registry.kit.errors import ServiceError
from registry.uploads import service
from registry.uploads.model import Upload

log = structlog.get_logger()


async def clear(database: Database, store: BlobStore, upload: Upload) -> None:
    """Take all that it has brought out of the store. After a failure, do it again."""
    for file in upload.files:
        if file.store_id is not None:
            await store.abort_multipart(upload.prefix + file.path, file.store_id)
    await store.delete_folder(upload.prefix)
    async with database.begin() as db:
        await service.mark_cleared(db, upload)


async def expire_due(database: Database, store: BlobStore, *, at: datetime | None = None) -> int:
    """Give up what was not committed in time, and clear whatever has come to nothing; how many
    were given up. The service does it by itself, every minute."""
    async with database.begin() as db:
        expired = await service.expire(db, at=at or now())
    async with database.read() as db:
        waiting = await service.uncleared(db)
    for upload in waiting:
        try:
            await clear(database, store, upload)
        except (OSError, ServiceError) as error:  # the next round does it again
            log.warning("upload.not_cleared", upload=upload.id, reason=str(error))
    return expired
