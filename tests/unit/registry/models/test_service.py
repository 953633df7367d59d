from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from exporters.hf_model import FileInfo, ModelInfo
from registry.models import service
from registry.models.errors import (
    InvalidModelName,
    ModelExists,
    ModelFileChanged,
    ModelFileMissing,
    ModelFileNotFound,
    ModelNotFound,
)

HELLO = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"


def info(path: Path = Path("/models/tiny"), digest: str = "sha256:00") -> ModelInfo:
    names = (
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "additional_chat_templates/t.jinja",
    )
    files = tuple(FileInfo(name, 5, HELLO) for name in names)
    return ModelInfo(path, digest, "LlamaForCausalLM", 64, 128, (2, 4), files)


async def test_a_model_is_found_by_name(db: AsyncSession) -> None:
    added = await service.add(db, name="org/tiny", inspected=info())
    assert await service.require_base_model(db, "org/tiny") is added
    assert (added.context_length, added.end_ids) == (64, [2, 4])


async def test_the_same_files_again_note_where_they_lie_now(db: AsyncSession) -> None:
    first = await service.add(db, name="tiny", inspected=info())
    again = await service.add(db, name="tiny", inspected=info(Path("/moved")))
    assert again.id == first.id
    assert again.path == "/moved"


async def test_other_files_under_a_taken_name_are_refused(db: AsyncSession) -> None:
    await service.add(db, name="tiny", inspected=info())
    other = replace(info(), digest="sha256:11")
    with pytest.raises(ModelExists, match="sha256:00, these files have sha256:11"):
        await service.add(db, name="tiny", inspected=other)


async def test_an_unknown_model_lists_the_known_ones(db: AsyncSession) -> None:
    with pytest.raises(ModelNotFound, match="modelyard models add"):
        await service.require_base_model(db, "gpt")
    for name in ("b", "a"):
        await service.add(db, name=name, inspected=info())
    with pytest.raises(ModelNotFound, match="'gpt'; this service has: a, b"):
        await service.require_base_model(db, "gpt")


@pytest.mark.parametrize("name", ["", "a/b/c", "../a", "a b", "/a", "a/", "org/tokenizer", "a\0"])
async def test_a_bad_name_is_refused(db: AsyncSession, name: str) -> None:
    with pytest.raises(InvalidModelName):
        await service.add(db, name=name, inspected=info())


async def test_only_what_a_tokenizer_needs_is_served(db: AsyncSession, tmp_path: Path) -> None:
    model = await service.add(db, name="tiny", inspected=info(tmp_path))
    (tmp_path / "tokenizer.json").write_text("hello")
    file = service.require_tokenizer_file(model, "tokenizer.json")
    assert service.read_file(model, file) == b"hello"
    served = [file["path"] for file in service.tokenizer_files(model)]
    assert served == ["config.json", "tokenizer.json", "additional_chat_templates/t.jinja"]
    with pytest.raises(ModelFileNotFound, match="model"):
        service.require_tokenizer_file(model, "model.safetensors")


async def test_a_file_that_changed_since_is_not_served(db: AsyncSession, tmp_path: Path) -> None:
    model = await service.add(db, name="tiny", inspected=info(tmp_path))
    file = service.require_tokenizer_file(model, "tokenizer.json")
    with pytest.raises(ModelFileMissing, match=r"tokenizer\.json is missing"):
        service.read_file(model, file)
    (tmp_path / "tokenizer.json").write_text("hullo")
    with pytest.raises(ModelFileChanged, match=r"tokenizer\.json"):
        service.read_file(model, file)
