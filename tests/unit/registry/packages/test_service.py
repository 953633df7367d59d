from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from registry.artifacts.errors import InvalidArtifactName
from registry.artifacts.manifest import FileEntry, manifest_digest
from registry.kit.errors import ServiceError
from registry.packages import service
from registry.packages.errors import (
    AlreadyRegistered,
    GroupExists,
    GroupNotFound,
    InvalidPackage,
    PackageIsImmutable,
    VersionNotFound,
)
from registry.packages.model import Approval, PackageFile, PackageKind
from registry.packages.ref import PackageRef
from support.packages import a_draft, a_version, an_actor, published

ADAPTER_FILE = FileEntry("checkpoints/hf/a.json", 2, "ab" * 32)


async def test_versions_count_up_in_their_group(db: AsyncSession) -> None:
    actor = await an_actor(db)
    refs = [(await a_version(db, actor, group)).ref for group in ("a", "b", "a", "a")]
    assert refs == ["a@1", "b@1", "a@2", "a@3"]


async def test_a_version_keeps_what_its_draft_said(db: AsyncSession) -> None:
    actor = await an_actor(db)
    parent = await a_version(db, actor, "other")
    said: dict[str, Any] = {
        "step": 7,
        "metrics": {"loss": 0.5},
        "user_metadata": {"who": "me"},
        "session_id": "ses_1",
        "usage": {"train": 12},
        "parent_id": parent.id,
    }
    made = await a_version(db, actor, kind=PackageKind.state, **said)
    db.expire_all()
    found = await service.require_version(db, actor, PackageRef("demo", 1))
    files = await service.files(db, found)
    assert {name: getattr(found, name) for name in said} == said
    assert found.parent is not None
    assert found.parent.ref == "other@1"
    assert (found.digest, found.size) == (manifest_digest(files), 4)
    assert made is found


async def test_another_accounts_version_answers_like_an_unknown_one(db: AsyncSession) -> None:
    alice, bob = await an_actor(db, "alice"), await an_actor(db, "bob")
    await a_version(db, alice, "demo")
    answers = []
    for group in ("demo", "never-made"):
        with pytest.raises(GroupNotFound) as caught:
            await service.require_version(db, bob, PackageRef(group, 1))
        answers.append(caught.value.message.replace(group, "GROUP"))
    assert answers[0] == answers[1]
    await service.ensure_group(db, bob, "demo")
    with pytest.raises(VersionNotFound, match="demo@1"):
        await service.require_version(db, bob, PackageRef("demo", 1))


async def test_another_accounts_version_is_no_parent(db: AsyncSession) -> None:
    alice, bob = await an_actor(db, "alice"), await an_actor(db, "bob")
    foreign = await a_version(db, alice)
    with pytest.raises(InvalidPackage, match="parent_id: no version"):
        await a_version(db, bob, parent_id=foreign.id)


async def test_registering_in_a_missing_group_leaves_no_group(db: AsyncSession) -> None:
    actor = await an_actor(db)
    with pytest.raises(GroupNotFound, match="'ghost'"):
        await service.register(db, actor, group_name="ghost", draft=a_draft(actor, "ghost"))
    assert (await service.groups(db, actor)).items == []


async def test_the_same_package_is_published_once(db: AsyncSession) -> None:
    actor = await an_actor(db)
    draft = a_draft(actor, "demo")
    await service.ensure_group(db, actor, "demo")
    await published(db, actor, "demo", draft)
    db.expunge_all()
    with pytest.raises(AlreadyRegistered, match=draft.id):
        await service.register(db, actor, group_name="demo", draft=draft)
    page = await service.versions(db, actor, "demo")
    assert [package.version for package in page.items] == [1]


async def test_a_published_version_does_not_change(db: AsyncSession) -> None:
    package = await a_version(db, await an_actor(db))
    package.approval = Approval.approved
    await db.flush()
    with pytest.raises(PackageIsImmutable, match="digest, step"):
        await _change(db, package, digest="other", step=9)


async def test_a_published_file_does_not_change(db: AsyncSession) -> None:
    package = await a_version(db, await an_actor(db))
    (file,) = await service.files(db, package)
    row = await db.get_one(PackageFile, (package.id, file.path))
    with pytest.raises(PackageIsImmutable, match="sha256"):
        await _change(db, row, sha256="00")


async def _change(db: AsyncSession, row: object, **values: object) -> None:
    """The transaction goes on without the change."""
    for name, value in values.items():
        setattr(row, name, value)
    try:
        async with db.begin_nested():
            await db.flush()
    finally:
        db.expunge_all()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"description": "x" * 1025}, "description: 1025 characters; at most 1024"),
        ({"description": "\0"}, "description"),
        ({"user_metadata": {str(n): "" for n in range(51)}}, "metadata: 51 entries"),
        ({"user_metadata": {"k" * 129: ""}}, "metadata: key"),
        ({"user_metadata": {"": ""}}, "metadata: key"),
        ({"user_metadata": {"k": "v" * 1025}}, r"metadata\.k"),
        ({"metrics": {"loss": float("nan")}}, r"metrics\.loss: nan is not a finite number"),
        ({"metrics": {"loss": float("inf")}}, r"metrics\.loss"),
        ({"files": []}, "files: .* needs checkpoints/hf/"),
        ({"files": [ADAPTER_FILE, ADAPTER_FILE]}, "twice"),
        ({"files": [ADAPTER_FILE, FileEntry("state/x", 1, "00")]}, "'state/x' is no part"),
        ({"kind": PackageKind.merged, "files": [ADAPTER_FILE]}, "needs checkpoints/hf_merged/"),
        ({"prefix": "somewhere/else/"}, "prefix: 'somewhere/else/'"),
    ],
)
async def test_a_bad_draft_is_refused_by_field(
    db: AsyncSession, changes: dict[str, Any], named: str
) -> None:
    actor = await an_actor(db)
    with pytest.raises(InvalidPackage, match=named):
        await a_version(db, actor, **changes)
    assert (await service.require_group(db, actor, "demo")).last_version == 0


async def test_a_file_name_that_leads_out_is_refused(db: AsyncSession) -> None:
    files = [FileEntry("checkpoints/hf/../../x", 1, "00")]
    with pytest.raises(InvalidArtifactName):
        await a_version(db, await an_actor(db), files=files)


@pytest.mark.parametrize(
    "name", ["", "-a", "a-", "a b", "a_b", "ü", "a/b", "a" * 64, "a" + "-" * 62 + "a", "a\n"]
)
async def test_a_bad_group_name_is_refused(db: AsyncSession, name: str) -> None:
    with pytest.raises(ServiceError, match="name"):
        await service.create_group(db, await an_actor(db), name)


async def test_a_group_is_ensured_once_and_created_once(db: AsyncSession) -> None:
    actor = await an_actor(db)
    group = await service.ensure_group(db, actor, "demo")
    assert await service.ensure_group(db, actor, "demo") is group
    with pytest.raises(GroupExists, match="demo"):
        await service.create_group(db, actor, "demo")
