"""What may be stored: an allow-list by content. A suffix proves nothing."""

import json
import pickletools
from pathlib import Path

from exporters.base import BadFile
from exporters.tensor_file import read_header
from registry.artifacts.errors import ArtifactRefused

# A SentencePiece model is a protobuf message whose first field, its pieces, has this tag.
_SENTENCEPIECE_TAG = b"\x0a"
_SENTENCEPIECE_NAMES = ("tokenizer.model", "spiece.model")
_RUNS_CODE = frozenset(
    ("GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE", "BUILD")
)


def refuse_pickle(path: Path) -> None:
    """Admit safetensors, JSON, text and SentencePiece models; anything else might be unpickled."""
    if path.suffix == ".safetensors":
        _check_safetensors(path)
    elif path.name in _SENTENCEPIECE_NAMES:
        _check_sentencepiece(path)
    else:
        _check_text(path)


def _check_safetensors(path: Path) -> None:
    try:
        read_header(path)
    except BadFile as error:
        raise ArtifactRefused(path.name, error.reason) from None


def _check_sentencepiece(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(1) != _SENTENCEPIECE_TAG:
            raise ArtifactRefused(path.name, "is not a SentencePiece model")


def _check_text(path: Path) -> None:
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError:
        raise ArtifactRefused(
            path.name, "is neither safetensors, JSON nor text; pickled files are never stored"
        ) from None
    if path.suffix == ".json":
        try:
            json.loads(text)
        except ValueError as error:
            raise ArtifactRefused(path.name, f"is not JSON: {error}") from None
    elif _is_text_pickle(text.encode()):
        raise ArtifactRefused(path.name, "is a pickle; pickled files are never stored")


def _is_text_pickle(data: bytes) -> bool:
    """Pickle's oldest protocol is plain ASCII. Listing its steps runs none of them."""
    try:
        names = {opcode.name for opcode, _, _ in pickletools.genops(data)}
    except Exception:  # noqa: BLE001  # bad streams raise many kinds; each means: no pickle
        return False
    return not names.isdisjoint(_RUNS_CODE)
