"""Whether what came is a version that can be used: recognised, whole, and fitting its base."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporters import directory, fit
from exporters.base import BadFile, read_json
from exporters.chat_template import read_templates, read_tokenizer_config
from exporters.companions import EXTRA_TEMPLATES, GENERATION_CONFIG, TOKENIZER_FILES
from exporters.directory import ADAPTER, MERGED, Content, Layout
from exporters.shards import CONFIG, HEAD, embedding_name, read_shards
from registry.artifacts.manifest import FileEntry
from registry.models import service as models
from registry.models.model import BaseModel, ModelFile

_TOKENIZER = "tokenizer.json"
_TEMPLATES = ("chat_template.jinja", "chat_template.json")


@dataclass(frozen=True, slots=True)
class Found:
    """`added` are the base's files that complete the version; `whole` are weights whose values a
    check has to see, and of which only the header was kept."""

    layout: Layout
    content: Content
    added: tuple[FileEntry, ...]
    whole: tuple[str, ...]

    @property
    def lora(self) -> dict[str, Any]:
        """Empty for full weights that no adapter belongs to."""
        if self.content.adapter is None:
            return {}
        config = self.content.adapter.config
        return {
            "rank": config.rank,
            "alpha": config.alpha,
            "targets": list(config.targets),
            "seed": self.content.seed,
        }


def examine(folder: Path, kind: str, base: BaseModel) -> Found:
    """Everything that needs no weights. Completes `folder` with what the base has to add."""
    with _told_without(folder):
        layout = directory.recognise(folder, kind)
        content = directory.examine(layout)
    added = [entry for part in (ADAPTER, MERGED) for entry in _complete(layout.parts, part, base)]
    return Found(layout, content, tuple(added), _needed_whole(layout, content))


def fit_base(found: Found, base: BaseModel) -> None:
    """Compare with the base as it lies on this machine."""
    models.stamps(base)
    path = Path(base.path)
    shards = read_shards(path)
    parts, content = found.layout.parts, found.content
    if content.adapter is not None:
        with directory.named(f"{ADAPTER}/"):
            fit.fit_adapter(content.adapter, parts[ADAPTER], path, shards)
    if content.merged is not None:
        with directory.named(f"{MERGED}/"):
            fit.fit_merged(parts[MERGED], content.merged, path, shards)


@contextmanager
def _told_without(folder: Path) -> Iterator[None]:
    """Where we keep things for a moment is nobody's business."""
    try:
        yield
    except BadFile as error:
        file = "files" if error.file == str(folder) else error.file
        raise BadFile(file, error.reason.replace(f"{folder}/", "")) from None


def _complete(parts: Mapping[str, Path], part: str, base: BaseModel) -> list[FileEntry]:
    """As a save has them: byte for byte the base's. What came with them stays as it came: a
    tokenizer, a chat template wherever it stands, a generation config."""
    if part not in parts:
        return []
    target = parts[part]
    has_tokenizer, has_template = (target / _TOKENIZER).is_file(), _has_template(target)

    def is_wanted(name: str) -> bool:
        if name in _TEMPLATES or name.startswith(f"{EXTRA_TEMPLATES}/"):
            return not has_template
        if name in TOKENIZER_FILES:
            return not has_tokenizer and not (target / name).exists()
        return name == GENERATION_CONFIG and not (target / name).exists()

    return [_add(target, part, base, file) for file in base.files if is_wanted(file["path"])]


def _has_template(target: Path) -> bool:
    if any((target / name).is_file() for name in _TEMPLATES):
        return True
    return bool(read_templates(target, read_tokenizer_config(target)))


def _add(target: Path, part: str, base: BaseModel, file: ModelFile) -> FileEntry:
    path = target / file["path"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(models.read_file(base, file))
    return FileEntry(f"{part}/{file['path']}", file["size"], file["sha256"])


def _needed_whole(layout: Layout, content: Content) -> tuple[str, ...]:
    """A tied model that stores its head too: both tensors must be the same."""
    shards = content.merged
    if shards is None or not any(HEAD in tensors for tensors in shards.values()):
        return ()
    if not read_json(layout.parts[MERGED], CONFIG).get("tie_word_embeddings", False):
        return ()
    names = {HEAD, embedding_name(shards)}
    return tuple(f"{MERGED}/{file}" for file, tensors in shards.items() if names & tensors.keys())
