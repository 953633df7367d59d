"""A keeper that is killed in the middle of a purge: `python -m support.purging URL BUCKET COUNT`.

It goes by SIGKILL once COUNT objects are gone, with the transaction behind it that began the purge
and before the one that would end it.
"""

import asyncio
import json
import os
import signal
import sys

from registry.artifacts.bucket import Bucket
from registry.artifacts.s3 import S3BlobStore
from registry.kit.clock import now
from registry.kit.db import Database
from registry.packages.keeper import Keeper
from support.registry_service import GRACE


class Dying(S3BlobStore):
    def __init__(self, bucket: Bucket, count: int) -> None:
        super().__init__(bucket)
        self._count = count

    async def delete_folder(self, prefix: str) -> int:
        doomed = (await self.keys(prefix))[: self._count]
        await asyncio.gather(*map(self.delete, doomed))
        os.kill(os.getpid(), signal.SIGKILL)
        return 0


async def main(url: str, bucket: str, count: str) -> None:
    store = Dying(Bucket(**json.loads(bucket)), int(count))
    await Keeper(Database.connect(url), store, grace=GRACE).round(at=now() + GRACE)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
