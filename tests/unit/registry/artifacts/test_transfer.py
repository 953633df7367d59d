import asyncio
from pathlib import Path

import pytest

from registry.artifacts.errors import ArtifactRefused, CorruptArtifact, StoreUnavailable
from registry.artifacts.manifest import FileEntry, describe
from registry.artifacts.memory import MemoryBlobStore
from registry.artifacts.store import CHUNK, Progress
from registry.artifacts.transfer import materialize, upload, verified_stream

PREFIX = "1/demo/pkg_1/"


async def stored(folder: Path, text: str = "hello") -> tuple[MemoryBlobStore, list[FileEntry]]:
    source = folder / "source"
    (source / "state").mkdir(parents=True)
    (source / "state" / "a.txt").write_text(text)
    (source / "b.txt").write_text("b")
    store = MemoryBlobStore()
    files = await upload(store, PREFIX, source, ["b.txt", "state/a.txt"])
    assert files == describe(source)
    return store, files


async def test_what_was_uploaded_comes_back(tmp_path: Path) -> None:
    store, files = await stored(tmp_path)
    await materialize(store, PREFIX, files, tmp_path / "cache" / "target")
    assert describe(tmp_path / "cache" / "target") == files
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["target"]


@pytest.mark.parametrize("damage", [b"hullo", b"hell", b""])
async def test_a_damaged_object_is_named_and_leaves_nothing(tmp_path: Path, damage: bytes) -> None:
    store, files = await stored(tmp_path)
    await store.put_bytes(PREFIX + "state/a.txt", damage)
    with pytest.raises(CorruptArtifact, match=r"state/a\.txt"):
        await materialize(store, PREFIX, files, tmp_path / "cache" / "target")
    assert list((tmp_path / "cache").iterdir()) == []


async def test_a_missing_object_is_named(tmp_path: Path) -> None:
    store, files = await stored(tmp_path)
    await store.delete(PREFIX + "b.txt")
    with pytest.raises(CorruptArtifact, match=r"b\.txt"):
        await materialize(store, PREFIX, files, tmp_path / "target")


async def test_a_complete_target_is_kept_without_the_store(tmp_path: Path) -> None:
    store, files = await stored(tmp_path)
    await materialize(store, PREFIX, files, tmp_path / "target")
    await materialize(MemoryBlobStore(), PREFIX, files, tmp_path / "target")
    assert describe(tmp_path / "target") == files


@pytest.mark.parametrize("damage", ["changed", "removed", "added", "linked"])
async def test_a_target_that_differs_is_made_again(tmp_path: Path, damage: str) -> None:
    store, files = await stored(tmp_path)
    target = tmp_path / "target"
    await materialize(store, PREFIX, files, target)
    match damage:
        case "changed":
            (target / "b.txt").write_text("c")
        case "removed":
            (target / "b.txt").unlink()
        case "added":
            (target / "more.txt").write_text("c")
        case "linked":
            (target / "link").symlink_to("b.txt")
    await materialize(store, PREFIX, files, target)
    assert describe(target) == files


async def test_a_pickle_is_not_uploaded(tmp_path: Path) -> None:
    (tmp_path / "optimizer.pt").write_bytes(b"\x80\x04N.")
    store = MemoryBlobStore()
    with pytest.raises(ArtifactRefused, match=r"optimizer\.pt"):
        await upload(store, PREFIX, tmp_path, ["optimizer.pt"])
    assert await store.keys("") == []


async def test_a_stream_gives_every_byte(tmp_path: Path) -> None:
    text = "x" * (2 * CHUNK + 1)
    store, files = await stored(tmp_path, text)
    pieces = [piece async for piece in await verified_stream(store, PREFIX, files[1])]
    assert b"".join(pieces).decode() == text
    assert len(pieces) == 3


async def test_a_damaged_stream_never_ends_well(tmp_path: Path) -> None:
    store, files = await stored(tmp_path, "x" * (2 * CHUNK))
    await store.put_bytes(PREFIX + "state/a.txt", b"y" + b"x" * (2 * CHUNK - 1))
    pieces = await verified_stream(store, PREFIX, files[1])
    assert len(await anext(pieces)) == CHUNK
    with pytest.raises(CorruptArtifact, match=r"state/a\.txt"):
        await anext(pieces)


@pytest.mark.parametrize("damage", [b"hullo", b"hell"])
async def test_a_small_damaged_file_fails_before_its_first_byte(
    tmp_path: Path, damage: bytes
) -> None:
    store, files = await stored(tmp_path)
    await store.put_bytes(PREFIX + "state/a.txt", damage)
    with pytest.raises(CorruptArtifact, match=r"state/a\.txt"):
        await verified_stream(store, PREFIX, files[1])


class Interrupted(MemoryBlobStore):
    """Goes away at the second file."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.is_away = True

    async def fetch(self, key: str, path: Path, *, progress: Progress | None = None) -> str:
        if self.is_away and self.fetched:
            raise StoreUnavailable("a fault")
        self.fetched.append(key.removeprefix(PREFIX))
        return await super().fetch(key, path, progress=progress)


async def interrupted(folder: Path) -> tuple[Interrupted, list[FileEntry]]:
    source = folder / "source"
    (source / "state").mkdir(parents=True)
    (source / "state" / "a.txt").write_text("hello")
    (source / "b.txt").write_text("b")
    store = Interrupted()
    files = await upload(store, PREFIX, source, ["b.txt", "state/a.txt"])
    with pytest.raises(StoreUnavailable):
        await materialize(store, PREFIX, files, folder / "cache" / "target")
    assert not (folder / "cache" / "target").exists()
    store.is_away = False
    return store, files


async def test_files_of_an_interrupted_try_are_not_fetched_again(tmp_path: Path) -> None:
    store, files = await interrupted(tmp_path)
    moved: list[int] = []
    await materialize(store, PREFIX, files, tmp_path / "cache" / "target", progress=moved.append)
    assert store.fetched == ["b.txt", "state/a.txt"]
    assert sum(moved) == 5
    assert describe(tmp_path / "cache" / "target") == files
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["target"]


async def test_a_damaged_file_of_an_interrupted_try_is_fetched_again(tmp_path: Path) -> None:
    store, files = await interrupted(tmp_path)
    (tmp_path / "cache" / ".target.incoming" / "b.txt").write_text("c")
    await materialize(store, PREFIX, files, tmp_path / "cache" / "target")
    assert store.fetched == ["b.txt", "b.txt", "state/a.txt"]
    assert describe(tmp_path / "cache" / "target") == files


async def test_what_another_version_left_aside_does_not_come_in(tmp_path: Path) -> None:
    store, files = await interrupted(tmp_path)
    await materialize(store, PREFIX, files[1:], tmp_path / "cache" / "target")
    assert describe(tmp_path / "cache" / "target") == files[1:]


async def test_many_that_make_one_target_all_succeed(tmp_path: Path) -> None:
    store, files = await stored(tmp_path)
    target = tmp_path / "cache" / "target"
    await asyncio.gather(*(materialize(store, PREFIX, files, target) for _ in range(5)))
    assert describe(target) == files
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["target"]
