"""Whether what came is a version that can be used: recognised, whole, and fitting its base."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporters import confined
from exporters.base import BadFile
from exporters.companions import EXTRA_TEMPLATES, GENERATION_CONFIG, TOKENIZER_FILES
from exporters.directory import ADAPTER, MERGED
from registry.artifacts.manifest import FileEntry
from registry.models import service as models
from registry.models.model import BaseModel, ModelFile

_TOKENIZER = "tokenizer.json"
_TEMPLATES = ("chat_template.jinja", "chat_template.json")


@dataclass(frozen=True, slots=True)
class Content:
    """What the headers say. `lora` is empty for full weights that no adapter belongs to; `step` is
    the optimizer's."""

    lora: dict[str, Any]
    step: int


@dataclass(frozen=True, slots=True)
class Found:
    """`added` are the base's files that complete the version; `whole` are weights whose values a
    check has to see, and of which only the header was kept."""

    folder: Path
    kind: str
    content: Content
    added: tuple[FileEntry, ...]
    whole: tuple[str, ...]

    @property
    def lora(self) -> dict[str, Any]:
        return self.content.lora


def examine(folder: Path, kind: str, base: BaseModel) -> Found:
    """Everything that needs no weights. Completes `folder` with what the base has to add."""
    with _told_without(folder):
        said = confined.examine(folder, kind)
    content = Content(said["lora"], said["step"])
    added: list[FileEntry] = []
    for part in (ADAPTER, MERGED):
        if (folder / part).is_dir():
            added += _complete(folder / part, part, base, part in said["templates"])
    return Found(folder, kind, content, tuple(added), tuple(said["whole"]))


def fit_base(found: Found, base: BaseModel) -> None:
    """Compare with the base as it lies on this machine."""
    models.stamps(base)
    with _told_without(found.folder):
        confined.fit(found.folder, found.kind, Path(base.path))


@contextmanager
def _told_without(folder: Path) -> Iterator[None]:
    """Where we keep things for a moment is nobody's business."""
    try:
        yield
    except BadFile as error:
        file = "files" if error.file == str(folder) else error.file
        raise BadFile(file, error.reason.replace(f"{folder}/", "")) from None


def _complete(target: Path, part: str, base: BaseModel, is_configured: bool) -> list[FileEntry]:
    """As a save has them: byte for byte the base's. What came with them stays as it came: a
    tokenizer, a chat template wherever it stands, a generation config."""
    has_tokenizer = (target / _TOKENIZER).is_file()
    has_template = is_configured or any((target / name).is_file() for name in _TEMPLATES)

    def is_wanted(name: str) -> bool:
        if name in _TEMPLATES or name.startswith(f"{EXTRA_TEMPLATES}/"):
            return not has_template
        if name in TOKENIZER_FILES:
            return not has_tokenizer and not (target / name).exists()
        return name == GENERATION_CONFIG and not (target / name).exists()

    return [_add(target, part, base, file) for file in base.files if is_wanted(file["path"])]


def _add(target: Path, part: str, base: BaseModel, file: ModelFile) -> FileEntry:
    path = target / file["path"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(models.read_file(base, file))
    return FileEntry(f"{part}/{file['path']}", file["size"], file["sha256"])
