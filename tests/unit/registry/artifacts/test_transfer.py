from pathlib import Path

import pytest

from registry.artifacts.errors import ArtifactRefused, CorruptArtifact
from registry.artifacts.manifest import FileEntry, describe
from registry.artifacts.memory import MemoryBlobStore
from registry.artifacts.transfer import materialize, upload, verified_stream

PREFIX = "1/demo/pkg_1/"


async def stored(folder: Path, text: str = "hello") -> tuple[MemoryBlobStore, list[FileEntry]]:
    source = folder / "source"
    (source / "state").mkdir(parents=True)
    (source / "state" / "a.txt").write_text(text)
    (source / "b.txt").write_text("b")
    store, files = MemoryBlobStore(), describe(source)
    await upload(store, PREFIX, source, files)
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
        await upload(store, PREFIX, tmp_path, describe(tmp_path))
    assert await store.keys("") == []


async def test_a_stream_gives_every_byte(tmp_path: Path) -> None:
    text = "x" * (2 * 2**20 + 1)
    store, files = await stored(tmp_path, text)
    pieces = [piece async for piece in await verified_stream(store, PREFIX, files[1])]
    assert b"".join(pieces).decode() == text
    assert len(pieces) == 3


async def test_a_damaged_stream_never_ends_well(tmp_path: Path) -> None:
    store, files = await stored(tmp_path, "x" * (2 * 2**20))
    await store.put_bytes(PREFIX + "state/a.txt", b"y" + b"x" * (2 * 2**20 - 1))
    pieces = await verified_stream(store, PREFIX, files[1])
    assert len(await anext(pieces)) == 2**20
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
