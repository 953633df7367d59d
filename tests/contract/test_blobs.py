"""Every object store keeps these promises."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from registry.artifacts.errors import BlobNotFound, InvalidArtifactName
from registry.artifacts.local import LocalBlobStore
from registry.artifacts.memory import MemoryBlobStore
from registry.artifacts.s3 import S3BlobStore
from registry.artifacts.store import BlobStore
from support.s3 import S3Server


@pytest.fixture(params=["local", "memory", "minio", "versitygw"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlobStore]:
    if request.param == "local":
        yield LocalBlobStore(tmp_path / "objects")
    elif request.param == "memory":
        yield MemoryBlobStore()
    else:
        server: S3Server = request.getfixturevalue(request.param)
        with closing(S3BlobStore(server.fresh_bucket(prefix="team/modelyard"))) as store:
            yield store


async def test_bytes_come_back(store: BlobStore) -> None:
    await store.put_bytes("a/b", b"hello")
    assert await store.read("a/b") == b"hello"
    assert await store.size("a/b") == 5


async def test_a_file_goes_in_and_out(store: BlobStore, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"hello")
    await store.put_file("a/b", tmp_path / "in")
    await store.fetch("a/b", tmp_path / "new" / "out")
    assert (tmp_path / "new" / "out").read_bytes() == b"hello"
    assert (tmp_path / "in").exists()


async def test_a_stream_comes_in_chunks(store: BlobStore) -> None:
    await store.put_bytes("a", b"hello")
    assert [piece async for piece in store.stream("a", chunk=2)] == [b"he", b"ll", b"o"]


async def test_putting_again_replaces(store: BlobStore) -> None:
    await store.put_bytes("a", b"one")
    await store.put_bytes("a", b"two")
    assert await store.read("a") == b"two"


async def test_keys_are_sorted_and_start_with_the_prefix(store: BlobStore) -> None:
    for key in ("b/2", "b/1", "bc/1", "a"):
        await store.put_bytes(key, b"")
    assert await store.keys("b/") == ["b/1", "b/2"]
    assert await store.keys("b") == ["b/1", "b/2", "bc/1"]
    assert await store.keys("") == ["a", "b/1", "b/2", "bc/1"]
    assert await store.keys("none/") == []


async def test_a_missing_object_is_named(store: BlobStore, tmp_path: Path) -> None:
    with pytest.raises(BlobNotFound, match="a/b"):
        await store.read("a/b")
    with pytest.raises(BlobNotFound, match="a/b"):
        await store.fetch("a/b", tmp_path / "out")
    with pytest.raises(BlobNotFound, match="a/b"):
        [piece async for piece in store.stream("a/b")]
    assert await store.size("a/b") is None


async def test_deleting_a_missing_object_is_success(store: BlobStore) -> None:
    await store.put_bytes("a/b/c", b"")
    await store.delete("a/b/c")
    await store.delete("a/b/c")
    assert await store.keys("") == []


async def test_a_folder_goes_and_its_neighbour_stays(store: BlobStore) -> None:
    for key in ("a/1/x", "a/1/y/z", "a/10/x"):
        await store.put_bytes(key, b"")
    assert await store.delete_folder("a/1/") == 2
    assert await store.delete_folder("a/1/") == 0
    assert await store.keys("") == ["a/10/x"]


@pytest.mark.parametrize("prefix", ["a/1", "", "/", "../"])
async def test_only_a_folder_is_deleted_whole(store: BlobStore, prefix: str) -> None:
    with pytest.raises(InvalidArtifactName):
        await store.delete_folder(prefix)


async def test_a_failed_fetch_keeps_the_file_that_was_there(
    store: BlobStore, tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("old")
    with pytest.raises(BlobNotFound):
        await store.fetch("a", tmp_path / "out")
    await store.put_bytes("a", b"new")
    await store.fetch("a", tmp_path / "out")
    assert [name for name in os.listdir(tmp_path) if "out" in name] == ["out"]
    assert (tmp_path / "out").read_text() == "new"


@pytest.mark.parametrize("key", ["../x", "/x", "a/../../x", "a\\x", "", "a\0"])
async def test_a_key_never_leads_out(store: BlobStore, key: str) -> None:
    with pytest.raises(InvalidArtifactName):
        await store.put_bytes(key, b"x")
    with pytest.raises(InvalidArtifactName):
        await store.read(key)
    with pytest.raises(InvalidArtifactName):
        await store.delete(key)


async def test_writers_and_deleters_side_by_side_lose_nothing(store: BlobStore) -> None:
    async def one(number: int) -> None:
        await store.put_bytes(f"a/{number}/gone", b"")
        await asyncio.gather(
            store.delete(f"a/{number}/gone"), store.put_bytes(f"a/{number}/kept", b"")
        )

    await asyncio.gather(*(one(number) for number in range(30)))
    assert len(await store.keys("a/")) == 30


async def test_a_link_in_the_directory_does_not_lead_out(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    (tmp_path / "secret").write_text("x")
    (tmp_path / "objects" / "link").symlink_to(tmp_path)
    with pytest.raises(InvalidArtifactName):
        await LocalBlobStore(tmp_path / "objects").read("link/secret")


async def test_a_failed_write_leaves_no_object_and_no_rest(tmp_path: Path) -> None:
    store = LocalBlobStore(tmp_path / "objects")
    with pytest.raises(FileNotFoundError):
        await store.put_file("a/b", tmp_path / "missing")
    assert await store.keys("") == []
    assert [path for path in (tmp_path / "objects").rglob("*") if path.is_file()] == []
