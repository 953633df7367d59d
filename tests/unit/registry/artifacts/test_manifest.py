import hashlib
from pathlib import Path

import pytest

from registry.artifacts.errors import ArtifactRefused
from registry.artifacts.manifest import FileEntry, describe, manifest_digest


def test_a_directory_is_described_by_sorted_paths_sizes_and_hashes(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "inner.txt").write_bytes(b"two")
    (tmp_path / "a.txt").write_bytes(b"")
    assert describe(tmp_path) == [
        FileEntry("a.txt", 0, hashlib.sha256(b"").hexdigest()),
        FileEntry("b/inner.txt", 3, hashlib.sha256(b"two").hexdigest()),
    ]


@pytest.mark.parametrize("target", ["file.txt", "missing", "."])
def test_a_link_is_refused_wherever_it_leads(tmp_path: Path, target: str) -> None:
    (tmp_path / "file.txt").write_text("x")
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(ArtifactRefused, match="link"):
        describe(tmp_path)


def test_the_digest_does_not_depend_on_the_order() -> None:
    one, two = FileEntry("a", 1, "aa"), FileEntry("b", 2, "bb")
    assert manifest_digest([one, two]) == manifest_digest([two, one])


@pytest.mark.parametrize("other", [("b", 1, "aa"), ("a", 2, "aa"), ("a", 1, "bb")])
def test_the_digest_depends_on_path_size_and_hash(other: tuple[str, int, str]) -> None:
    digest = manifest_digest([FileEntry("a", 1, "aa")])
    assert digest.startswith("sha256:")
    assert manifest_digest([FileEntry(*other)]) != digest
