"""Adapters, shards and damage for model directories in tests."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from exporters import peft_adapter
from exporters.shards import INDEX, WEIGHTS


def random_adapter(
    base: Path, target: Path, *, targets: Sequence[str], rank: int = 4, seed: int = 0
) -> Path:
    """An adapter with random A and B on every module of the base that is targeted."""
    config = peft_adapter.AdapterConfig(rank, 2.0 * rank, tuple(targets), "tiny/base")
    peft_adapter.write(target, config, _updates(base, config, seed), base=base)
    return target


def _updates(base: Path, config: peft_adapter.AdapterConfig, seed: int) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    weights = load_file(base / WEIGHTS)
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    tensors = {}
    for name, weight in weights.items():
        module = name.removesuffix(".weight")
        if module.split(".")[-1] in config.targets:
            out, into = weight.shape
            tensors[peft_adapter.tensor_key(module, "A")] = torch.randn(
                config.rank, into, generator=random
            )
            tensors[peft_adapter.tensor_key(module, "B")] = 0.1 * torch.randn(
                out, config.rank, generator=random
            )
    return tensors


def split(model: Path, *, shards: int) -> Path:
    """Spread the tensors of a single-file model over shards with an index."""
    tensors = load_file(model / WEIGHTS)
    (model / WEIGHTS).unlink()
    weight_map: dict[str, str] = {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in sorted(tensors)[number::shards]}
        weight_map |= dict.fromkeys(part, file)
        save_file(part, model / file, metadata={"format": "pt"})
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (model / INDEX).write_text(json.dumps(index))
    return model


def change_tensors(file: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Write a weights file again after `change`."""
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def change_json(file: Path, **values: Any) -> None:
    """Set keys of a JSON file; None removes one."""
    content = json.loads(file.read_text()) | values
    kept = {key: value for key, value in content.items() if value is not None}
    file.write_text(json.dumps(kept))


def cast(model: Path, dtype: torch.dtype) -> Path:
    """Store the weights of a model in another dtype."""

    def cast_all(tensors: dict[str, Tensor]) -> None:
        tensors.update({name: tensor.to(dtype) for name, tensor in tensors.items()})

    change_tensors(model / WEIGHTS, cast_all)
    change_json(model / "config.json", dtype=str(dtype).removeprefix("torch."))
    return model
