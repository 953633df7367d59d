"""Peak memory above rest while 2 GiB move."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from benchmarks.big_file import write_big_file
from benchmarks.processes import peak_bytes
from benchmarks.rows import Row
from registry.access import service as access
from registry.access.actor import Actor, Role
from registry.artifacts.bucket import Bucket
from registry.artifacts.manifest import FileEntry, hash_file
from registry.artifacts.s3 import S3BlobStore
from registry.kit import migrate
from registry.settings import Settings
from session.cli.credentials import write_credentials
from session.cli.installation import migrations, open_home
from session.resources import open_database
from support import s3
from support.packages import a_version
from support.service import environment, serving

MIB = 2**20
SIZE = 2048 * MIB
BOUND = 256.0
NAME = "checkpoints/hf/big.safetensors"
_TRANSFER = """
import asyncio, pathlib, sys
from benchmarks.processes import peak_bytes
from registry.artifacts.bucket import Bucket
from registry.artifacts.s3 import S3BlobStore

async def main(way, endpoint, name, path):
    store = S3BlobStore(Bucket(name=name, endpoint=endpoint))
    await store.put_bytes("warm", b"x")
    before = peak_bytes()
    await getattr(store, way)("big", pathlib.Path(path))
    print((peak_bytes() - before) / 2**20)

asyncio.run(main(*sys.argv[1:]))
"""


def run() -> Iterator[Row]:
    with s3.credentials(), s3.minio() as server, TemporaryDirectory() as folder:
        big, bucket = Path(folder) / "big", server.fresh_bucket()
        write_big_file(big, SIZE)
        for way, path in (("put_file", big), ("fetch", Path(folder) / "copy")):
            words = [way, str(bucket.endpoint), bucket.name, str(path)]
            said = subprocess.check_output([sys.executable, "-c", _TRANSFER, *words], text=True)
            yield _row(f"{way} of 2 GiB", float(said))
        (Path(folder) / "copy").unlink()
        yield from _served(Path(folder), big, bucket)


def _served(folder: Path, big: Path, bucket: Bucket) -> Iterator[Row]:
    named = {"ENDPOINT": str(bucket.endpoint), "BUCKET": bucket.name}
    settings = {f"MODELYARD_OBJECTS__{name}": value for name, value in named.items()}
    asyncio.run(_publish(folder / "home", big, bucket))
    with serving(folder / "home", settings=settings) as service:
        rest = peak_bytes(service.process.pid) / MIB
        address = f"{service.url}/v1/groups/big/versions/1/files/{NAME}"
        headers, received = {"Authorization": f"Bearer {service.api_key}"}, 0
        with httpx.stream("GET", address, headers=headers, timeout=60) as answer:
            for piece in answer.iter_raw(MIB):
                received += len(piece)
        if received != SIZE:
            raise RuntimeError(f"{received} bytes came")
        yield _row("modelyard serve: 2 GiB over REST", peak_bytes(service.process.pid) / MIB - rest)
        key = {"MODELYARD_URL": service.url, "MODELYARD_API_KEY": service.api_key}
        used = _pulled(folder / "out", environment(folder, key))
        yield _row("modelyard pull of 2 GiB", used, "all of the process")


def _pulled(target: Path, environment: dict[str, str]) -> float:
    """All of the process, also what it is at rest."""
    command = [sys.executable, "-m", "session", "pull", "big@1", str(target)]
    used = 0.0
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            used = max(used, peak_bytes(process.pid) / MIB)
            time.sleep(0.1)
    if process.returncode:
        raise RuntimeError("pull failed")
    return used


async def _publish(home: Path, big: Path, bucket: Bucket) -> None:
    chosen = Settings(home=home)
    open_home(chosen)
    await migrate.ensure(chosen.database_url(), migrations())
    entry = FileEntry(NAME, SIZE, hash_file(big))
    database = open_database(chosen)
    async with database.begin() as db:
        secret = str(await access.ensure_admin(db))
        account = next(iter(await access.accounts(db)))
        actor = Actor(account.id, Role.admin)
        package = await a_version(db, actor, "big", files=[entry])
    await database.close()
    write_credentials(home, "http://127.0.0.1:1", secret)  # serve writes its own address
    with closing(S3BlobStore(bucket)) as store:
        await store.put_file(package.prefix + NAME, big)


def _row(what: str, used: float, note: str = "") -> Row:
    return Row(what, used, "MiB", "the bound", BOUND, more_is_better=False, note=note)
