"""Whether weights from outside fit the base model that they are said to come from. Headers alone
tell, and the tokenizer: nothing is loaded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exporters import peft_adapter
from exporters.base import BadAdapter, BadModel, read_json
from exporters.directory import Adapter
from exporters.hf_model import architecture, check_tied, check_tokenizer, end_ids
from exporters.peft_adapter import is_targeted, tensor_key
from exporters.shards import CONFIG, HEAD, INDEX, WEIGHTS, Shards, embedding_name, shapes

# A model with other values computes something else with tensors of the same shapes.
_STRUCTURE = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "hidden_act",
    "vocab_size",
)


def fit_adapter(adapter: Adapter, directory: Path, base: Path, shards: Shards) -> None:
    """Every update has its place in the base, and every place that is targeted its update."""
    places = shapes(shards)
    rows, _ = places[embedding_name(shards)]
    places.setdefault(HEAD, places[embedding_name(shards)])
    tensors = {name: entry.shape for name, entry in adapter.tensors.items()}
    updates = peft_adapter.modules(adapter.config, tensors)
    for module, update in updates.items():
        key, shape = tensor_key(module, "A"), places.get(f"{module}.weight")
        if shape is None:
            reason = f"{key} has no place: the base has no {module}.weight"
            raise BadAdapter(peft_adapter.WEIGHTS, reason)
        if shape != update:
            raise BadAdapter(
                peft_adapter.WEIGHTS,
                f"{key} and its B make an update of shape {list(update)}, "
                f"{module}.weight of the base is {list(shape)}",
            )
    for name, shape in places.items():
        module = name.removesuffix(".weight")
        is_linear = name.endswith(".weight") and len(shape) == 2
        if is_linear and module not in updates and is_targeted(module, adapter.config.targets):
            reason = f"lacks an update of {module}, which target_modules names"
            raise BadAdapter(peft_adapter.WEIGHTS, reason)
    _check_speech(directory, read_json(base, CONFIG), rows)


def fit_merged(directory: Path, found: Shards, base: Path, shards: Shards) -> None:
    """The same model as the base, with other values."""
    config, known = read_json(directory, CONFIG), read_json(base, CONFIG)
    if architecture(config) != architecture(known):
        reason = f"its architecture is {architecture(config)}, the base's {architecture(known)}"
        raise BadModel(CONFIG, reason)
    for key in _STRUCTURE:
        if config.get(key) != known.get(key):
            raise BadModel(CONFIG, f"{key} is {config.get(key)!r}, the base's {known.get(key)!r}")
    _check_shapes(directory, config, found, shards)
    rows, _ = shapes(found)[embedding_name(found)]
    _check_speech(directory, config, rows)


def _check_shapes(
    directory: Path, config: Mapping[str, Any], found: Shards, shards: Shards
) -> None:
    weights = INDEX if (directory / INDEX).is_file() else WEIGHTS
    has, wanted = shapes(found), shapes(shards)
    is_tied = bool(config.get("tie_word_embeddings", HEAD not in has))
    if not is_tied or HEAD in has:  # of a tied base, whose head was trained apart
        wanted.setdefault(HEAD, wanted[embedding_name(shards)])
    for name, shape in wanted.items():
        if name not in has:
            raise BadModel(weights, f"lacks the tensor {name}, which the base has")
        if has[name] != shape:
            reason = f"{name} has shape {list(has[name])}, the base's has {list(shape)}"
            raise BadModel(weights, reason)
    for name in has:
        if name not in wanted:
            raise BadModel(weights, f"holds the tensor {name}, which the base has not")
    if is_tied and HEAD in has:
        check_tied(directory, found)


def _check_speech(directory: Path, config: Mapping[str, Any], rows: int) -> None:
    """The tokens have their rows, and generation ends where the chat template ends a turn."""
    check_tokenizer(directory, rows, end_ids(directory, config, rows))
