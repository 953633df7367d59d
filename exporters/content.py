"""What a file may hold: an allow-list by content. A suffix proves nothing."""

import json
from pathlib import Path
from typing import Any

from exporters.base import BadFile
from exporters.tensor_file import read_header
from exporters.text_pickle import is_text_pickle

# A SentencePiece model is a protobuf message whose first field, its pieces, has this tag.
_SENTENCEPIECE_TAG = b"\x0a"
_SENTENCEPIECE_NAMES = ("tokenizer.model", "spiece.model")
_NEVER = (
    *(".bin", ".ckpt", ".h5", ".joblib", ".msgpack", ".npy", ".npz"),
    *(".pickle", ".pkl", ".pt", ".pth"),
    *(".gz", ".tar", ".zip"),
)
_PACKED = (b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b")  # zip, an empty one, gzip


def why_never(name: str) -> str | None:
    """What is wrong with a file of this name, whatever it holds: some loader would unpickle it."""
    suffix = next((each for each in _NEVER if name.lower().endswith(each)), None)
    return suffix and f"is a {suffix} file; pickled and packed files are never stored"


def read_content(path: Path) -> Any:
    """Admit safetensors, JSON, text and SentencePiece models; anything else might be unpickled.

    Of JSON, what it says; of anything else None.
    """
    if reason := why_never(path.name):
        raise BadFile(path.name, reason)
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
    data = path.read_bytes()
    if data.startswith(_PACKED):
        raise BadFile(
            path.name, "is a zip or gzip archive; pickled and packed files are never stored"
        )
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise BadFile(
            path.name, "is neither safetensors, JSON nor text; pickled files are never stored"
        ) from None
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadFile(path.name, f"is not JSON: {error}") from None
    if is_text_pickle(data):
        raise BadFile(path.name, "is a pickle; pickled files are never stored")
    return None
