"""Base models: register a directory that was looked through, find it by name."""

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from exporters.companions import EXTRA_TEMPLATES, TOKENIZER_FILES
from exporters.hf_model import ModelInfo
from registry.artifacts.manifest import hash_file
from registry.kit.ids import new_id
from registry.models.errors import (
    InvalidModelName,
    ModelExists,
    ModelFileChanged,
    ModelFileMissing,
    ModelFileNotFound,
    ModelNotFound,
)
from registry.models.model import BaseModel, ModelFile
from registry.models.repository import ModelRepository

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
# `/v1/models/ORG/NAME/tokenizer` is a place of its own, so no name may end like that.
_NAME = re.compile(rf"{_PART}(/(?!tokenizer$){_PART})?")
# A tokenizer is loaded together with the model's own config, which names its class.
_SERVED = frozenset((*TOKENIZER_FILES, "config.json"))

Stamps = tuple[tuple[str, int, int, int], ...]
"""Each file's path, size, inode and time of change: other stamps, maybe other bytes."""


async def add(db: AsyncSession, *, name: str, inspected: ModelInfo) -> BaseModel:
    """Adding the same files under the same name again only notes where they lie now."""
    if not _NAME.fullmatch(name):
        raise InvalidModelName(name)
    models = ModelRepository(db)
    model = _from(name, inspected)
    try:
        async with db.begin_nested():
            models.add(model)
    except IntegrityError:
        model = await require_base_model(db, name)
        if model.digest != inspected.digest:
            raise ModelExists(name, registered=model.digest, offered=inspected.digest) from None
        model.path = str(inspected.path)
        await db.flush()
    return model


async def base_models(db: AsyncSession) -> Sequence[BaseModel]:
    return await ModelRepository(db).all()


async def base_model(db: AsyncSession, name: str) -> BaseModel | None:
    return await ModelRepository(db).by_name(name) if _NAME.fullmatch(name) else None


async def require_base_model(db: AsyncSession, name: str) -> BaseModel:
    model = await base_model(db, name)
    if model is None:
        raise ModelNotFound(name, known=[known.name for known in await base_models(db)])
    return model


def tokenizer_files(model: BaseModel) -> list[ModelFile]:
    """What a client needs to make the model's tokenizer without a model hub."""
    return [
        file
        for file in model.files
        if file["path"] in _SERVED or file["path"].startswith(f"{EXTRA_TEMPLATES}/")
    ]


def require_tokenizer_file(model: BaseModel, path: str) -> ModelFile:
    for file in tokenizer_files(model):
        if file["path"] == path:
            return file
    raise ModelFileNotFound(model.name, path)


def read_file(model: BaseModel, file: ModelFile) -> bytes:
    """The file as it was registered; the directory is the operator's and may have changed since."""
    path = Path(model.path, file["path"])
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise _missing(model, path) from None
    if hashlib.sha256(data).hexdigest() != file["sha256"]:
        raise ModelFileChanged(model.name, file["path"])
    return data


def stamps(model: BaseModel) -> Stamps:
    """How its files look from outside; a missing one, or one of another size, raises."""
    return tuple(_stamp(model, file) for file in model.files)


def compare(model: BaseModel) -> Stamps:
    """Read every registered file; the first that is missing or was changed raises."""
    seen = stamps(model)
    for file in model.files:
        path = Path(model.path, file["path"])
        try:
            digest = hash_file(path)
        except (FileNotFoundError, NotADirectoryError):
            raise _missing(model, path) from None
        if digest != file["sha256"]:
            raise ModelFileChanged(model.name, file["path"])
    return seen


def _stamp(model: BaseModel, file: ModelFile) -> tuple[str, int, int, int]:
    path = Path(model.path, file["path"])
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise _missing(model, path) from None
    if found.st_size != file["size"]:
        raise ModelFileChanged(model.name, file["path"])
    return str(path), found.st_size, found.st_ino, found.st_mtime_ns


def _missing(model: BaseModel, path: Path) -> ModelFileMissing:
    """Named is what the operator has to bring back: the whole directory where that is gone."""
    directory = Path(model.path)
    return ModelFileMissing(model.name, path if directory.is_dir() else directory)


def _from(name: str, inspected: ModelInfo) -> BaseModel:
    return BaseModel(
        id=new_id("bm"),
        name=name,
        path=str(inspected.path),
        digest=inspected.digest,
        architecture=inspected.architecture,
        context_length=inspected.context_length,
        vocab_size=inspected.vocab_size,
        end_ids=list(inspected.end_ids),
        files=[
            ModelFile(path=file.path, size=file.size, sha256=file.sha256)
            for file in inspected.files
        ],
    )
