"""Every object store keeps these promises."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from registry.artifacts.errors import (
    BlobNotFound,
    InvalidArtifactName,
    MultipartNotFound,
    PartsRefused,
)
from registry.artifacts.local import LocalBlobStore
from registry.artifacts.memory import MemoryBlobStore
from registry.artifacts.parts import SMALLEST_PART
from registry.artifacts.s3 import S3BlobStore
from registry.artifacts.store import BlobStore, Part, Unfinished
from registry.kit.clock import now
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


async def test_writers_deleters_and_readers_side_by_side_lose_nothing(store: BlobStore) -> None:
    async def one(number: int) -> None:
        folder = f"a/{number % 10}/{number}"
        await store.put_bytes(f"{folder}/gone", b"gone")
        read, *rest = await asyncio.gather(
            store.read(f"{folder}/gone"),
            store.delete(f"{folder}/gone"),
            store.put_bytes(f"{folder}/kept", b"kept"),
            store.size(f"{folder}/gone"),
            store.keys(""),
            return_exceptions=True,
        )
        assert read == b"gone" or isinstance(read, BlobNotFound)
        assert not [each for each in rest if isinstance(each, BaseException)]

    await asyncio.gather(*(one(number) for number in range(100)))
    assert len(await store.keys("a/")) == 100


async def test_a_folder_that_vanishes_meanwhile_stops_no_writer_and_no_reader(
    tmp_path: Path,
) -> None:
    """Only a directory has folders that come and go; more of the same, for what is rare."""
    store = LocalBlobStore(tmp_path)
    await store.put_bytes("kept/x", b"x")

    async def busy(key: str) -> None:
        for _ in range(300):
            await store.put_bytes(key, b"")
            await store.delete(key)

    async def listed() -> None:
        for _ in range(300):
            assert "kept/x" in await store.keys("")

    await asyncio.gather(*(busy(f"a/b/{number}") for number in range(4)), listed())
    assert await store.keys("") == ["kept/x"]


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


async def test_progress_tells_of_every_byte(store: BlobStore, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(os.urandom(SMALLEST_PART * 2 + 1))
    up: list[int] = []
    down: list[int] = []
    await store.put_file("a", tmp_path / "in", progress=up.append)
    await store.fetch("a", tmp_path / "out", progress=down.append)
    assert sum(up) == sum(down) == SMALLEST_PART * 2 + 1


async def test_a_listing_says_size_and_time(store: BlobStore) -> None:
    before = now()
    await store.put_bytes("a/2", b"hello")
    await store.put_bytes("a/1", b"")
    await store.put_bytes("b", b"x")
    found = await store.objects("a/")
    assert [(each.key, each.size) for each in found] == [("a/1", 0), ("a/2", 5)]
    for each in found:
        assert abs(each.modified - before) < timedelta(minutes=1)


async def test_parts_become_an_object_in_the_order_of_their_numbers(store: BlobStore) -> None:
    first, second, last = os.urandom(SMALLEST_PART), os.urandom(SMALLEST_PART + 1), b"end"
    upload = await store.begin_multipart("a/b")
    parts = [
        await store.put_part("a/b", upload, number, data)
        for number, data in ((10_000, last), (7, second), (1, first))
    ]
    assert await store.size("a/b") is None
    assert await store.parts("a/b", upload) == parts[::-1]
    assert [part.size for part in parts[::-1]] == [SMALLEST_PART, SMALLEST_PART + 1, 3]
    await store.finish_multipart("a/b", upload, parts[::-1])
    assert await store.read("a/b") == first + second + last


async def test_a_part_that_is_put_again_replaces_the_first(store: BlobStore) -> None:
    upload = await store.begin_multipart("a")
    old = await store.put_part("a", upload, 1, b"old")
    new = await store.put_part("a", upload, 1, b"new")
    assert await store.parts("a", upload) == [new]
    with pytest.raises(PartsRefused):
        await store.finish_multipart("a", upload, [old])
    await store.finish_multipart("a", upload, [new])
    assert await store.read("a") == b"new"


async def test_finishing_again_is_success(store: BlobStore) -> None:
    upload = await store.begin_multipart("a")
    part = await store.put_part("a", upload, 1, b"hello")
    await store.finish_multipart("a", upload, [part])
    await store.finish_multipart("a", upload, [part])
    assert await store.read("a") == b"hello"


async def test_an_object_of_another_size_is_not_what_an_upload_made(store: BlobStore) -> None:
    upload = await store.begin_multipart("a")
    part = await store.put_part("a", upload, 1, b"hello")
    await store.abort_multipart("a", upload)
    await store.put_bytes("a", b"another")
    with pytest.raises(MultipartNotFound, match="'a'"):
        await store.finish_multipart("a", upload, [part])
    assert await store.read("a") == b"another"


async def test_an_aborted_upload_leaves_nothing(store: BlobStore) -> None:
    upload = await store.begin_multipart("a")
    part = await store.put_part("a", upload, 1, b"hello")
    await store.abort_multipart("a", upload)
    await store.abort_multipart("a", upload)
    assert await store.keys("") == []
    assert await store.unfinished("a") == []
    with pytest.raises(MultipartNotFound):
        await store.parts("a", upload)
    with pytest.raises(MultipartNotFound):
        await store.put_part("a", upload, 1, b"hello")
    with pytest.raises(MultipartNotFound):
        await store.finish_multipart("a", upload, [part])


async def test_an_upload_belongs_to_its_key(store: BlobStore) -> None:
    upload = await store.begin_multipart("a")
    with pytest.raises(MultipartNotFound):
        await store.put_part("b", upload, 1, b"x")
    with pytest.raises(MultipartNotFound):
        await store.parts("b", upload)
    await store.abort_multipart("b", upload)
    assert await store.parts("a", upload) == []


async def test_only_the_last_part_may_be_small(store: BlobStore) -> None:
    upload = await store.begin_multipart("a")
    small = await store.put_part("a", upload, 1, bytes(SMALLEST_PART - 1))
    last = await store.put_part("a", upload, 2, b"x")
    with pytest.raises(PartsRefused):
        await store.finish_multipart("a", upload, [small, last])
    assert await store.size("a") is None
    assert await store.parts("a", upload) == [small, last]


@pytest.mark.parametrize("number", [-1, 0, 10_001])
async def test_parts_are_numbered_from_1_to_10000(store: BlobStore, number: int) -> None:
    upload = await store.begin_multipart("a")
    with pytest.raises(PartsRefused, match=f"part {number} is not one of 1 to 10000"):
        await store.put_part("a", upload, number, b"x")


async def test_parts_that_are_not_there_make_no_object(store: BlobStore) -> None:
    upload = await store.begin_multipart("a")
    part = await store.put_part("a", upload, 2, b"x")
    for wanted in ([], [Part(1, 1, part.etag), part], [part, replace(part, number=1)]):
        with pytest.raises(PartsRefused):
            await store.finish_multipart("a", upload, wanted)
    assert await store.size("a") is None


async def test_what_is_unfinished_is_listed_with_its_bytes(store: BlobStore) -> None:
    before = now()
    uploads = [await store.begin_multipart("a/b") for _ in range(2)]
    await store.put_part("a/b", uploads[1], 1, b"hello")
    await store.put_part("a/b", uploads[1], 2, b"!")
    found = await store.unfinished("a/b")
    assert {(each.key, each.upload_id, each.size) for each in found} == {
        ("a/b", uploads[0], 0),
        ("a/b", uploads[1], 6),
    }
    for each in found:
        assert abs(each.started - before) < timedelta(minutes=1)
    assert await store.keys("") == []
    assert await store.objects("") == []


async def test_two_that_finish_at_once_both_succeed(store: BlobStore) -> None:
    data = os.urandom(SMALLEST_PART)
    upload = await store.begin_multipart("a")
    parts = [await store.put_part("a", upload, n, data) for n in (1, 2)]
    await asyncio.gather(*(store.finish_multipart("a", upload, parts) for _ in range(4)))
    assert await store.read("a") == data * 2
    assert await store.unfinished("a") == []


async def test_a_part_outlives_the_process_that_put_it(tmp_path: Path) -> None:
    upload = await LocalBlobStore(tmp_path).begin_multipart("a")
    part = await LocalBlobStore(tmp_path).put_part("a", upload, 1, b"hello")
    assert await LocalBlobStore(tmp_path).parts("a", upload) == [part]
    await LocalBlobStore(tmp_path).finish_multipart("a", upload, [part])
    assert await LocalBlobStore(tmp_path).read("a") == b"hello"
    assert list((tmp_path / ".incoming").iterdir()) == []


@pytest.mark.parametrize("upload", ["", ".", "..", "../../a", "0" * 32])
async def test_an_upload_id_never_leads_out(tmp_path: Path, upload: str) -> None:
    (tmp_path / "key").write_text("a")
    store = LocalBlobStore(tmp_path / "objects")
    with pytest.raises(MultipartNotFound):
        await store.put_part("a", upload, 1, b"x")
    await store.abort_multipart("a", upload)
    assert (tmp_path / "key").exists()


async def test_what_a_killed_process_was_writing_is_unfinished(tmp_path: Path) -> None:
    store = LocalBlobStore(tmp_path)
    arrival = tmp_path / ".incoming" / ("ab" * 16)
    arrival.mkdir(parents=True)
    (arrival / "key").write_text("a/b")
    (arrival / "data").write_bytes(b"half")
    found = await store.unfinished("a/")
    assert found == [Unfinished("a/b", "ab" * 16, found[0].started, 4)]
    await store.abort_multipart("a/b", "ab" * 16)
    assert not arrival.exists()


@pytest.mark.parametrize(
    ("start", "end", "wanted"), [(0, 2, b"he"), (1, 4, b"ell"), (3, None, b"lo"), (4, 5, b"o")]
)
async def test_a_range_is_streamed_alone(
    store: BlobStore, start: int, end: int | None, wanted: bytes
) -> None:
    await store.put_bytes("a", b"hello")
    pieces = [piece async for piece in store.stream("a", chunk=2, start=start, end=end)]
    assert b"".join(pieces) == wanted


async def test_a_fetch_tells_the_digest_of_what_came(store: BlobStore, tmp_path: Path) -> None:
    await store.put_bytes("a", b"hello")
    found = await store.fetch("a", tmp_path / "out")
    assert found == "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
