"""Base plus LoRA adapter to plain weights: added in float32, rounded once to the base's dtype.

Shard by shard, so memory is about one shard. A head that is tied to the embedding gets a tensor of
its own: PEFT's own merge would change the embedding with it, or lose the change on reload.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporters.base import BadAdapter, read_json, staged
from exporters.companions import copy_companions
from exporters.hf_model import inspect
from exporters.peft_adapter import WEIGHTS, Pair, pairs, read, tensor_key
from exporters.shards import CONFIG, HEAD, INDEX, Shards, embedding_name, read_shards, total_size

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class MergeReport:
    """`max_abs_err` is what the one cast to `dtype` changed at most; `merged` counts tensors."""

    merged: int
    dtype: str
    max_abs_err: float
    untied: bool


@dataclass(slots=True)
class _Merge:
    """What is still to add, by the name of the base tensor, and what was seen while adding."""

    pending: dict[str, Pair]
    scaling: float
    dtypes: set[str] = field(default_factory=set)
    max_abs_err: float = 0.0

    def apply(self, name: str, base: "Tensor") -> "Tensor":
        import torch

        pair = self.pending.pop(name, None)
        if pair is None:
            return base
        exact = base.float() + (pair.b @ pair.a) * self.scaling
        rounded = exact.to(base.dtype)
        if not torch.isfinite(rounded).all():
            raise BadAdapter(WEIGHTS, f"merged with it, {name} is not finite in {base.dtype}")
        self.dtypes.add(str(base.dtype).removeprefix("torch."))
        self.max_abs_err = max(self.max_abs_err, (rounded.float() - exact).abs().max().item())
        return rounded


def merge(base: Path, adapter: Path, target: Path) -> MergeReport:
    """Write a complete model directory to `target`, checked like any base model, or nothing."""
    config, tensors = read(adapter)
    shards = read_shards(base)
    base_config = read_json(base, CONFIG)
    modules = pairs(config, tensors)
    # Where the configuration does not say: a model without a head of its own shares one.
    tied = bool(base_config.get("tie_word_embeddings", not _holds(shards, HEAD)))
    untied = tied and HEAD.removesuffix(".weight") in modules
    # A tied base stores no head: the merged one is then born from the embedding.
    source = embedding_name(shards) if untied and not _holds(shards, HEAD) else None
    _check_fit(modules, shards, source)
    work = _Merge({f"{m}.weight": pair for m, pair in modules.items()}, config.alpha / config.rank)
    merged = len(work.pending)
    with staged(target) as directory:
        for file in shards:
            _write_shard(base / file, directory / file, work, source)
        _write_config(base, directory, base_config, untied=untied)
        _write_index(base, directory, shards, source)
        copy_companions(base, directory)
        inspect(directory)
    return MergeReport(merged, ", ".join(sorted(work.dtypes)), work.max_abs_err, untied)


def _holds(shards: Shards, name: str) -> bool:
    return any(name in tensors for tensors in shards.values())


def _check_fit(modules: Mapping[str, Pair], shards: Shards, head_source: str | None) -> None:
    """Before anything is written: every pair has its base tensor, of the right shape."""
    shapes = {name: e.shape for tensors in shards.values() for name, e in tensors.items()}
    if head_source is not None:
        shapes[HEAD] = shapes[head_source]
    for module, pair in modules.items():
        shape = shapes.get(f"{module}.weight")
        key = tensor_key(module, "A")
        if shape is None:
            raise BadAdapter(WEIGHTS, f"{key} has no place: the base has no {module}.weight")
        update = (pair.b.shape[0], pair.a.shape[1])
        if shape != update:
            raise BadAdapter(
                WEIGHTS,
                f"{key} and its B make an update of shape {list(update)}, "
                f"{module}.weight of the base is {list(shape)}",
            )


def _write_shard(source: Path, target: Path, work: _Merge, head_source: str | None) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    with safe_open(source, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            base = file.get_tensor(name)
            tensors[name] = work.apply(name, base)
            if name == head_source:
                tensors[HEAD] = work.apply(HEAD, base)
    save_file(tensors, target, metadata={"format": "pt"})


def _write_config(base: Path, target: Path, config: Mapping[str, Any], *, untied: bool) -> None:
    if untied:
        _write_json(target / CONFIG, {**config, "tie_word_embeddings": False})
    else:
        shutil.copyfile(base / CONFIG, target / CONFIG)


def _write_index(base: Path, target: Path, shards: Shards, head_source: str | None) -> None:
    if not (base / INDEX).is_file():
        return
    index = read_json(base, INDEX)
    if head_source is not None:
        file = index["weight_map"][HEAD] = index["weight_map"][head_source]
        size = total_size(shards) + shards[file][head_source].size
        index["metadata"] = {**(index.get("metadata") or {}), "total_size": size}
    _write_json(target / INDEX, index)


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
