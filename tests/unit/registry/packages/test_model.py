import pytest

from registry.packages.errors import NotPromotable, NotResumable
from registry.packages.model import Package, PackageGroup, PackageKind
from registry.packages.service import require_promotable, require_resumable


def package(kind: PackageKind) -> Package:
    return Package(version=3, kind=kind, group=PackageGroup(name="demo"))


@pytest.mark.parametrize(
    ("kind", "resumable", "promotable"),
    [("state", True, False), ("adapter", False, False), ("merged", False, True)],
)
def test_the_kind_says_what_a_version_is_good_for(
    kind: str, resumable: bool, promotable: bool
) -> None:
    found = package(PackageKind(kind))
    assert (found.is_resumable, found.is_promotable) == (resumable, promotable)


@pytest.mark.parametrize("kind", [PackageKind.adapter, PackageKind.merged])
def test_what_is_missing_for_a_resume_is_named(kind: PackageKind) -> None:
    require_resumable(package(PackageKind.state))
    with pytest.raises(NotResumable, match=rf"demo@3 .* kind {kind} and lacks state/"):
        require_resumable(package(kind))


@pytest.mark.parametrize("kind", [PackageKind.adapter, PackageKind.state])
def test_what_is_missing_for_a_promotion_is_named(kind: PackageKind) -> None:
    require_promotable(package(PackageKind.merged))
    with pytest.raises(NotPromotable, match=r"lacks checkpoints/hf_merged/.*merge demo 3"):
        require_promotable(package(kind))
