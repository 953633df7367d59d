"""A base model's tokenizer, fetched from the service once and kept by the model's digest."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from session.client.connection import Connection
from session.client.errors import ModelyardError
from session.client.records import BaseModelInfo, TokenizerFiles

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def model_path(name: str) -> str:
    return f"/v1/models/{quote(name)}"


def load_tokenizer(connection: Connection, model: str) -> "PreTrainedTokenizerBase":
    """A transformers tokenizer. No model hub is asked."""
    from transformers import AutoTokenizer

    folder = connection.background.run(_fetched(connection, model))
    load: Any = AutoTokenizer.from_pretrained
    tokenizer: PreTrainedTokenizerBase = load(folder, local_files_only=True)
    return tokenizer


async def _fetched(connection: Connection, model: str) -> Path:
    """The folder with the files. It appears complete or not at all."""
    found = await connection.get(model_path(model), BaseModelInfo)
    folder = connection.config.cache / "tokenizers" / found.digest.replace(":", "-")
    if folder.is_dir():
        return folder
    listed = await connection.get(f"{model_path(model)}/tokenizer", TokenizerFiles)
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=".part-", dir=folder.parent))
    try:
        for name in listed.files:
            if name != os.path.basename(name) or name in {"", ".", ".."}:
                raise ModelyardError(f"the service names a tokenizer file {name!r}: refused")
            content = await connection.download(f"{model_path(model)}/tokenizer/{quote(name)}")
            (part / name).write_bytes(content)
        _publish(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def _publish(part: Path, folder: Path) -> None:
    try:
        part.rename(folder)
    except OSError:
        if not folder.is_dir():  # another process was first: its files are the same
            raise
