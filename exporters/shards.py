"""The weights files of a Hugging Face model, by their headers alone."""

from pathlib import Path
from typing import Any

from exporters.base import BadFile, BadModel, read_json
from exporters.tensor_file import TensorEntry, read_header

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"
HEAD = "lm_head.weight"
_EMBEDDINGS = ("model.embed_tokens.weight", "transformer.wte.weight", "gpt_neox.embed_in.weight")

Shards = dict[str, dict[str, TensorEntry]]


def read_shards(path: Path) -> Shards:
    """The tensors of each weights file, once every one is where the index says it is."""
    present = {file.name for file in path.glob("*.safetensors")}
    if (path / INDEX).is_file():
        return _indexed_shards(path, present)
    if WEIGHTS not in present:
        missing = INDEX if present else WEIGHTS
        raise BadModel(missing, f"is missing in {path}; weights must be safetensors")
    _refuse_stray(present, {WEIGHTS})
    return {WEIGHTS: _header(path / WEIGHTS)}


def shapes(shards: Shards) -> dict[str, tuple[int, ...]]:
    return {name: entry.shape for tensors in shards.values() for name, entry in tensors.items()}


def embedding_name(shards: Shards) -> str:
    """The tensor that a tied head shares."""
    for name in _EMBEDDINGS:
        if any(name in tensors for tensors in shards.values()):
            return name
    raise BadModel(WEIGHTS, f"no embedding among its tensors (looked for {', '.join(_EMBEDDINGS)})")


def total_size(shards: Shards) -> int:
    return sum(entry.size for tensors in shards.values() for entry in tensors.values())


def _indexed_shards(path: Path, present: set[str]) -> Shards:
    index = read_json(path, INDEX)
    weight_map = _weight_map(index)
    for file in sorted(set(weight_map.values())):
        if file not in present:
            raise BadModel(file, f"is named by {INDEX}, but missing")
    _refuse_stray(present, set(weight_map.values()))
    shards = {file: _header(path / file) for file in sorted(present)}
    for name, file in weight_map.items():
        if name not in shards[file]:
            raise BadModel(file, f"lacks the tensor {name}, which {INDEX} places there")
    for file, tensors in shards.items():
        for name in tensors:
            if weight_map.get(name) != file:
                raise BadModel(file, f"holds the tensor {name}, which {INDEX} does not place there")
    declared = _metadata(index).get("total_size")
    total = total_size(shards)
    if declared is not None and declared != total:
        raise BadModel(INDEX, f"total_size is {declared}, the tensors take {total} bytes")
    return shards


def _weight_map(index: dict[str, Any]) -> dict[str, str]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadModel(INDEX, "has no weight_map")
    for name, file in weight_map.items():
        if not isinstance(file, str):
            raise BadModel(INDEX, f"places {name} in {file!r}, which is not the name of a file")
    return weight_map


def _metadata(index: dict[str, Any]) -> dict[str, Any]:
    metadata = index.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise BadModel(INDEX, "its metadata is not a JSON object")
    return metadata


def _refuse_stray(present: set[str], known: set[str]) -> None:
    for name in sorted(present - known):
        raise BadModel(name, "is not part of the model: no index names it")


def _header(path: Path) -> dict[str, TensorEntry]:
    try:
        return read_header(path)
    except BadFile as error:
        raise BadModel(error.file, error.reason) from error
