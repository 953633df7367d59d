"""What a file may hold: an allow-list by content. A suffix proves nothing."""

import json
import pickletools
from pathlib import Path
from typing import Any

from exporters.base import BadFile
from exporters.tensor_file import read_header

# A SentencePiece model is a protobuf message whose first field, its pieces, has this tag.
_SENTENCEPIECE_TAG = b"\x0a"
_SENTENCEPIECE_NAMES = ("tokenizer.model", "spiece.model")
_RUNS_CODE = frozenset(
    ("GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE", "BUILD")
)


def read_content(path: Path) -> Any:
    """Admit safetensors, JSON, text and SentencePiece models; anything else might be unpickled.

    Of JSON, what it says; of anything else None.
    """
    if path.suffix == ".safetensors":
        read_header(path)
    elif path.name in _SENTENCEPIECE_NAMES:
        _check_sentencepiece(path)
    else:
        return _read_text(path)
    return None


def _check_sentencepiece(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(1) != _SENTENCEPIECE_TAG:
            raise BadFile(path.name, "is not a SentencePiece model")


def _read_text(path: Path) -> Any:
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError:
        raise BadFile(
            path.name, "is neither safetensors, JSON nor text; pickled files are never stored"
        ) from None
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadFile(path.name, f"is not JSON: {error}") from None
    if _is_text_pickle(text.encode()):
        raise BadFile(path.name, "is a pickle; pickled files are never stored")
    return None


def _is_text_pickle(data: bytes) -> bool:
    """Pickle's oldest protocol is plain ASCII. Listing its steps runs none of them."""
    try:
        names = {opcode.name for opcode, _, _ in pickletools.genops(data)}
    except Exception:  # noqa: BLE001  # bad streams raise many kinds; each means: no pickle
        return False
    return not names.isdisjoint(_RUNS_CODE)
