"""What an upload may say of itself, and what the database keeps of it."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from exporters.hf_model import FileInfo, ModelInfo
from registry.access.actor import Actor
from registry.artifacts.manifest import FileEntry
from registry.kit.clock import now
from registry.kit.errors import Kind, ServiceError
from registry.models import service as models
from registry.packages import deletion
from registry.packages.ref import PackageRef
from registry.uploads import service
from registry.uploads.errors import UploadNotFound, UploadTokenReused
from registry.uploads.model import Limits, UploadState, UploadWish
from support.packages import a_draft, an_actor

LIMITS = Limits(part_bytes=8 * 2**20, files=3, bytes=1000, life_s=60)
CONFIG = "checkpoints/hf/adapter_config.json"


def file(path: str = CONFIG, size: int = 2, sha256: str = "ab" * 32) -> FileEntry:
    return FileEntry(path, size, sha256)


def a_wish(**changes: Any) -> UploadWish:
    said = {"token": "t1", "kind": "adapter", "files": [file()], "base_model": "tiny"}
    return UploadWish(**{**said, **changes})


@pytest.fixture
async def actor(db: AsyncSession) -> Actor:
    """Of an account in an installation that has the base `tiny`."""
    info = ModelInfo(Path("/tiny"), "sha256:00", "Llama", 16, 8, (2,), (FileInfo("x", 1, "00"),))
    await models.add(db, name="tiny", inspected=info)
    return await an_actor(db)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"files": []}, "files: is empty"),
        ({"files": [file("../x")]}, "file name '../x'"),
        ({"files": [file("checkpoints/hf/%2e%2e/x")]}, "holds a percent escape"),
        ({"files": [file("checkpoints/hf/a\\..\\x")]}, "holds a backslash"),
        ({"files": [file("/etc/passwd")]}, "is absolute"),
        ({"files": [file("ok/./x")]}, "'.' or '..'"),
        ({"files": [file("checkpoints/hf/.hidden.json")]}, "hf/.hidden.json is hidden"),
        ({"files": [file("checkpoints/hf/.x/evil")]}, "hf/.x/evil is hidden"),
        ({"files": [file("checkpoints/hf/model.BIN")]}, "model.BIN is a .bin file"),
        ({"files": [file(), file()]}, "are one name"),
        ({"files": [file(), file("checkpoints/hf/Adapter_config.json")]}, "are one name to some"),
        ({"files": [file("checkpoints/hf/a"), file("checkpoints/hf/a/b")]}, "a file and a folder"),
        ({"files": [file("elsewhere/x")]}, "files: a version of kind adapter needs"),
        ({"files": [file(), file("state/x")]}, "'state/x' is no part of kind adapter"),
        ({"files": [file(sha256="AB" * 32)]}, "files[0].sha256: of"),
        ({"files": [file(sha256="ab")]}, "files[0].sha256: of"),
        ({"files": [file(f"checkpoints/hf/{n}") for n in range(4)]}, "4 of them; at most 3"),
        ({"files": [file(size=1001)]}, "1001 bytes in all; at most 1000"),
        ({"base_model": "nobody"}, "base_model: no base model named 'nobody'"),
        ({"parent": "facts@9"}, "parent: no group named 'facts'"),
        ({"parent": "facts"}, "parent: 'facts' is not a version"),
        ({"token": ""}, "token: is not 1 to 128"),
        ({"token": "a\0"}, "token: is not 1 to 128"),
        ({"description": "x" * 1025}, "description: 1025 characters"),
        ({"metadata": {"k" * 129: ""}}, "metadata: key"),
    ],
)
async def test_a_wrong_wish_is_refused_by_field(
    db: AsyncSession, actor: Actor, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ServiceError) as caught:
        await service.add(db, actor, "facts", a_wish(**changes), LIMITS)
    assert caught.value.kind == Kind.invalid
    assert said in caught.value.message
    assert (await service.uploads(db, actor, "facts")).items == []


@pytest.mark.parametrize(
    ("name", "most"),
    [("generation_config.json", 4), ("chat_template.jinja", 4), ("tokenizer.json", 64)],
)
async def test_a_file_that_is_no_weights_may_not_be_huge(
    db: AsyncSession, actor: Actor, name: str, most: int
) -> None:
    wide = Limits(part_bytes=8 * 2**20, files=3, bytes=2**60, life_s=60)
    named = file(f"checkpoints/hf/{name}", size=most * 2**20 + 1)
    with pytest.raises(
        ServiceError, match=rf"files\[1\]\.size: .*{name} .* {most * 2**20} at most"
    ):
        await service.add(db, actor, "facts", a_wish(files=[file(), named]), wide)


async def test_a_group_that_could_not_be_is_refused(db: AsyncSession, actor: Actor) -> None:
    with pytest.raises(ServiceError, match="group: 'a b' is not"):
        await service.add(db, actor, "a b", a_wish(), LIMITS)


async def test_the_same_token_is_the_same_upload(db: AsyncSession, actor: Actor) -> None:
    first, is_new = await service.add(db, actor, "facts", a_wish(), LIMITS)
    again, is_new_again = await service.add(db, actor, "facts", a_wish(), LIMITS)
    other, _ = await service.add(db, actor, "other", a_wish(), LIMITS)
    assert (is_new, is_new_again) == (True, False)
    assert first.id == again.id != other.id
    with pytest.raises(UploadTokenReused):
        await service.add(db, actor, "facts", a_wish(files=[file(size=3)]), LIMITS)


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({"description": "another"}, Kind.conflict, "with another description"),
        ({"metadata": {"k": "v"}}, Kind.conflict, "with another metadata"),
        ({"base_model": "other"}, Kind.conflict, "with another base_model"),
        ({"kind": "merged", "files": [file("checkpoints/hf_merged/x")]}, Kind.conflict, "files"),
        ({"base_model": "nobody"}, Kind.invalid, "base_model: no base model"),
        ({"parent": "facts@9"}, Kind.invalid, "parent: no group named 'facts'"),
    ],
)
async def test_a_token_stands_for_all_that_was_said(
    db: AsyncSession, actor: Actor, changes: dict[str, Any], status: Kind, said: str
) -> None:
    info = ModelInfo(Path("/other"), "sha256:01", "Llama", 16, 8, (2,), (FileInfo("x", 1, "00"),))
    await models.add(db, name="other", inspected=info)
    first, _ = await service.add(db, actor, "facts", a_wish(), LIMITS)
    with pytest.raises(ServiceError, match=said) as caught:
        await service.add(db, actor, "facts", a_wish(**changes), LIMITS)
    assert caught.value.kind == status
    assert (await service.add(db, actor, "facts", a_wish(), LIMITS))[0].id == first.id


async def test_another_accounts_upload_is_unknown(db: AsyncSession, actor: Actor) -> None:
    upload, _ = await service.add(db, actor, "facts", a_wish(), LIMITS)
    bob = await an_actor(db, "bob")
    for group, upload_id in (("facts", upload.id), ("\0", upload.id), ("facts", "\0")):
        with pytest.raises(UploadNotFound):
            await service.require_upload(db, bob, group, upload_id)


async def test_of_two_who_claim_an_upload_one_gets_it(db: AsyncSession, actor: Actor) -> None:
    upload, _ = await service.add(db, actor, "facts", a_wish(), LIMITS)
    assert await service.claim(db, actor, upload.id, "one")
    assert not await service.claim(db, actor, upload.id, "two")
    await service.release(db, actor, upload, "two", UploadState.open)
    assert not await service.claim(db, actor, upload.id, "two")
    await service.release(db, actor, upload, "one", UploadState.open)
    assert await service.claim(db, actor, upload.id, "two")


async def test_a_claim_that_nobody_renews_grows_old(db: AsyncSession, actor: Actor) -> None:
    upload, _ = await service.add(db, actor, "facts", a_wish(), LIMITS)
    assert await service.claim(db, actor, upload.id, "dead")
    await db.refresh(upload)
    upload.claimed_at = now() - timedelta(seconds=service.CLAIM_S + 1)
    await db.flush()
    assert await service.claim(db, actor, upload.id, "alive")


async def test_what_is_given_up_frees_its_token(db: AsyncSession, actor: Actor) -> None:
    first, _ = await service.add(db, actor, "facts", a_wish(), LIMITS)
    assert await service.expire(db, at=now()) == 0
    assert await service.expire(db, at=now() + timedelta(seconds=61)) == 1
    again, is_new = await service.add(db, actor, "facts", a_wish(), LIMITS)
    assert (first.state, is_new) == (UploadState.expired, True)
    assert again.id != first.id


async def test_a_push_of_what_was_deleted_makes_it_anew(db: AsyncSession, actor: Actor) -> None:
    upload, _ = await service.add(db, actor, "facts", a_wish(), LIMITS)
    draft = a_draft(actor, "facts", id=upload.id, prefix=upload.prefix)
    package = await service.publish(db, actor, upload, draft)
    same, is_new = await service.add(db, actor, "facts", a_wish(), LIMITS)
    assert (same.ref, is_new) == ("facts@1", False)
    ref = PackageRef("facts", package.version)
    await deletion.delete(db, actor, ref, grace=timedelta(days=1))
    again, is_new = await service.add(db, actor, "facts", a_wish(), LIMITS)
    assert (again.id == upload.id, is_new) == (False, True)
