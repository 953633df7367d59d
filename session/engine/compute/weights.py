"""A model in training as files, and back. Nothing is pickled.

`checkpoints/hf` is a PEFT adapter. `state/optimizer.safetensors` holds `exp_avg.<parameter>` and
`exp_avg_sq.<parameter>`; `state/gradient.safetensors` the pending gradient, where there is one;
`state/state.json` the counters. Training draws no random numbers after the adapter's creation, so
its random state is the seed it was made from.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from exporters import peft_adapter
from exporters.base import BadFile
from session.engine.compute.lora import Adapter, Tensors, map_tensors, targeted
from session.engine.compute.model import BaseModel
from session.engine.compute.optim import Moments
from session.engine.compute.training import Training
from session.engine.port import EngineError, WeightsMismatch

T = TypeVar("T")

VERSION = 1
MOST_STEPS = 2**53  # what every reader of JSON takes for a whole number
ADAPTER = Path("checkpoints/hf")
STATE = Path("state/state.json")
OPTIMIZER = Path("state/optimizer.safetensors")
GRADIENT = Path("state/gradient.safetensors")
AVG, AVG_SQ = "exp_avg.", "exp_avg_sq."


def write(training: Training, target: Path, *, with_optimizer: bool) -> None:
    adapter, base = training.adapter, training.base.ref
    config = peft_adapter.AdapterConfig(adapter.rank, adapter.alpha, adapter.targets, base.name)
    peft_adapter.write(target / ADAPTER, config, adapter.tensors, base=base.path)
    if with_optimizer:
        _write_state(training, target)


def read_adapter(base: BaseModel, directory: Path) -> Adapter:
    """A PEFT adapter that fits the base; raises WeightsMismatch with the names that do not."""
    try:
        config, tensors = peft_adapter.read(directory)
    except BadFile as error:
        raise WeightsMismatch(str(error)) from error
    try:
        layers = targeted(base.layers, config.targets)
    except EngineError as error:
        raise WeightsMismatch(f"adapter_config.json: {error}") from error
    expected = {
        name: shape for layer in layers for name, shape in layer.shapes(config.rank).items()
    }
    _require_fit(tensors, expected, "adapter_model.safetensors")
    ordered = {name: tensors[name].to(base.device, base.precision) for name in expected}
    return Adapter(config.rank, config.alpha, config.targets, ordered)


def restore(training: Training, source: Path, *, with_optimizer: bool) -> Training:
    """The same model with the stored weights; without the optimizer, its moments start anew."""
    ours = training.adapter
    stored = read_adapter(training.base, source / ADAPTER)
    for name in ("rank", "alpha"):
        found, wanted = getattr(stored, name), getattr(ours, name)
        if found != wanted:
            raise WeightsMismatch(f"the adapter has {name} {found}, the model {name} {wanted}")
    _require_fit(stored.tensors, _shapes(ours.tensors), "adapter_model.safetensors")
    adapter = replace(ours, tensors={name: stored.tensors[name] for name in ours.tensors})
    loaded = Training.fresh(training.base, training.lora, adapter)
    if not with_optimizer:
        return replace(loaded, step=training.step)
    return _with_state(loaded, source)


def _write_state(training: Training, target: Path) -> None:
    moments = training.moments
    (target / STATE).parent.mkdir(parents=True, exist_ok=True)
    _save(
        _prefixed(AVG, moments.exp_avg) | _prefixed(AVG_SQ, moments.exp_avg_sq), target / OPTIMIZER
    )
    if training.gradient is not None:
        _save(training.gradient, target / GRADIENT)
    values = {
        "version": VERSION,
        "step": training.step,
        "adam_step": moments.count,
        "has_gradient": training.gradient is not None,
        "poisoned": training.poisoned,
        "rng": {"seed": training.lora.seed},
    }
    (target / STATE).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _with_state(loaded: Training, source: Path) -> Training:
    values = _read_state(source / STATE)
    shapes = _shapes(loaded.adapter.tensors)
    place = partial(Tensor.to, device=loaded.base.device, dtype=loaded.base.precision)
    tensors = map_tensors(
        place, _load(source / OPTIMIZER, _prefixed(AVG, shapes) | _prefixed(AVG_SQ, shapes))
    )
    moments = Moments(
        values["adam_step"],
        {name: tensors[AVG + name] for name in shapes},
        {name: tensors[AVG_SQ + name] for name in shapes},
    )
    gradient = (
        map_tensors(place, _load(source / GRADIENT, shapes)) if values["has_gradient"] else None
    )
    return replace(
        loaded,
        moments=moments,
        step=values["step"],
        gradient=gradient,
        poisoned=values["poisoned"],
    )


def _read_state(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise WeightsMismatch(f"{STATE} is missing: only the weights can be loaded") from None
    except ValueError as error:
        raise WeightsMismatch(f"{STATE} is not JSON") from error
    if not isinstance(values, dict) or values.get("version") != VERSION:
        raise WeightsMismatch(f"{STATE} is not of version {VERSION}")
    kinds: dict[str, type[int]] = {
        "step": int,
        "adam_step": int,
        "has_gradient": bool,
        "poisoned": bool,
    }
    for key, kind in kinds.items():
        value = values.get(key)
        if type(value) is not kind or not 0 <= value <= MOST_STEPS:
            raise WeightsMismatch(f"{STATE}: {key} is {value!r}")
    return values


def _save(tensors: Tensors, path: Path) -> None:
    save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, path)


def _load(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    file = f"state/{path.name}"
    if not path.is_file():
        raise WeightsMismatch(f"{file} is missing")
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise WeightsMismatch(f"{file}: {error}") from error
    _require_fit(tensors, shapes, file)
    return {name: tensors[name] for name in shapes}


def _require_fit(tensors: Tensors, shapes: Mapping[str, tuple[int, ...]], file: str) -> None:
    for name in (*shapes, *tensors):
        if name not in tensors:
            raise WeightsMismatch(f"{file}: {name} is missing")
        if name not in shapes:
            raise WeightsMismatch(f"{file}: the model has no {name}")
        found = tuple(tensors[name].shape)
        if found != shapes[name]:
            raise WeightsMismatch(
                f"{file}: {name} has shape {list(found)}, the model {list(shapes[name])}"
            )


def _shapes(tensors: Tensors) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _prefixed(prefix: str, values: Mapping[str, T]) -> dict[str, T]:
    return {prefix + name: value for name, value in values.items()}
