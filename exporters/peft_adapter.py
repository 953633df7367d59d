"""LoRA adapters in PEFT's file format, read strictly: what does not fit is named, not skipped."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporters.base import BadAdapter, BadFile
from exporters.companions import copy_companions
from exporters.tensor_file import TensorEntry, read_header

if TYPE_CHECKING:
    from torch import Tensor

CONFIG = "adapter_config.json"
BASE = "base_model_name_or_path"
WEIGHTS = "adapter_model.safetensors"
_KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
# Each of these changes what the adapter computes, so an adapter that uses one is refused.
_UNSUPPORTED = (
    "alora_invocation_tokens",
    "alpha_pattern",
    "fan_in_fan_out",
    "layer_replication",
    "lora_bias",
    "modules_to_save",
    "rank_pattern",
    "target_parameters",
    "trainable_token_indices",
    "use_dora",
    "use_rslora",
)
_FLOATS = frozenset(("F16", "BF16", "F32", "F64"))
_HUGE = 1e30
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """`targets` are module suffixes (`q_proj`, `lm_head`); the update is (alpha / rank) B A."""

    rank: int
    alpha: float
    targets: tuple[str, ...]
    base_name: str


@dataclass(frozen=True, slots=True)
class Pair:
    """The two halves of one module's update: `a` is [rank, in], `b` is [out, rank]."""

    a: "Tensor"
    b: "Tensor"


def tensor_key(module: str, side: str) -> str:
    """PEFT's name for one half (`A` or `B`) of a module like `model.layers.0.mlp.up_proj`."""
    return f"base_model.model.{module}.lora_{side}.weight"


def half_of(key: str) -> tuple[str, str] | None:
    """The module and the side (`A` or `B`) that a tensor's name says, if it is one of PEFT's."""
    match = _KEY.fullmatch(key)
    return None if match is None else (match["module"], match["side"])


def read_headers(directory: Path) -> tuple[AdapterConfig, dict[str, TensorEntry]]:
    """The adapter of a directory by its configuration and its header, after every check that
    needs no base."""
    config = _parse_config(directory / CONFIG)
    path = directory / WEIGHTS
    if not path.is_file():
        raise BadAdapter(WEIGHTS, "is missing")
    try:
        entries = read_header(path)
    except BadFile as error:
        raise BadAdapter(error.file, error.reason) from error
    modules(config, {name: entry.shape for name, entry in entries.items()})
    for name, entry in entries.items():
        if entry.dtype not in _FLOATS:
            raise BadAdapter(WEIGHTS, f"{name} is not floating point")
    return config, entries


def read(directory: Path) -> tuple[AdapterConfig, dict[str, "Tensor"]]:
    """The adapter of a directory, float32 on the CPU."""
    from safetensors.torch import load_file

    config, _ = read_headers(directory)
    tensors = load_file(directory / WEIGHTS)
    return config, {name: tensor.float() for name, tensor in tensors.items()}


def write(
    directory: Path, config: AdapterConfig, tensors: Mapping[str, "Tensor"], *, base: Path
) -> None:
    """Write what `PeftModel.from_pretrained` loads, with the companion files of the base."""
    import torch
    from safetensors.torch import save_file

    pairs(config, tensors)
    directory.mkdir(parents=True, exist_ok=True)
    # Cloned, because safetensors refuses tensors that share memory, and views.
    copies = {
        name: tensor.detach().to("cpu", torch.float32).contiguous().clone()
        for name, tensor in tensors.items()
    }
    save_file(copies, directory / WEIGHTS, metadata={"format": "pt"})
    text = json.dumps(_peft_config(config), indent=2)
    (directory / CONFIG).write_text(text + "\n", encoding="utf-8")
    copy_companions(base, directory)


def pairs(config: AdapterConfig, tensors: Mapping[str, "Tensor"]) -> dict[str, Pair]:
    """The update of each module, by name; raises for any tensor that has no place in one."""
    found = modules(config, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise BadAdapter(WEIGHTS, f"{name} is not floating point")
    return {m: Pair(tensors[tensor_key(m, "A")], tensors[tensor_key(m, "B")]) for m in found}


def modules(config: AdapterConfig, shapes: Shapes) -> dict[str, tuple[int, int]]:
    """The shape of each module's update; raises for any tensor that has no place in one."""
    halves: dict[str, set[str]] = {}
    for key in shapes:
        match = _KEY.fullmatch(key)
        if match is None:
            raise BadAdapter(WEIGHTS, f"{key} is not the name of a LoRA weight")
        halves.setdefault(match["module"], set()).add(match["side"])
    for target in config.targets:
        if not any(is_targeted(module, (target,)) for module in halves):
            raise BadAdapter(WEIGHTS, f"the target module {target} has no weights")
    return {module: _update(config, module, shapes) for module in sorted(halves)}


def _update(config: AdapterConfig, module: str, shapes: Shapes) -> tuple[int, int]:
    if not is_targeted(module, config.targets):
        raise BadAdapter(WEIGHTS, f"{module} is not among the target modules of {CONFIG}")
    for side, rank_axis in (("A", 0), ("B", 1)):
        key = tensor_key(module, side)
        if key not in shapes:
            raise BadAdapter(WEIGHTS, f"{key} is missing")
        shape = shapes[key]
        if len(shape) != 2 or shape[rank_axis] != config.rank:
            raise BadAdapter(WEIGHTS, f"{key} has shape {shape}, the rank is {config.rank}")
    return shapes[tensor_key(module, "B")][0], shapes[tensor_key(module, "A")][1]


def is_targeted(module: str, targets: tuple[str, ...]) -> bool:
    return any(module == target or module.endswith(f".{target}") for target in targets)


def _parse_config(path: Path) -> AdapterConfig:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadAdapter(CONFIG, "is missing") from error
    except (ValueError, RecursionError) as error:
        raise BadAdapter(CONFIG, "is not valid JSON") from error
    if not isinstance(values, dict):
        raise BadAdapter(CONFIG, "is not a JSON object")
    if values.get("peft_type") != "LORA":
        raise BadAdapter(CONFIG, f"peft_type is {values.get('peft_type')!r}, not 'LORA'")
    for name in _UNSUPPORTED:
        if values.get(name):
            raise BadAdapter(CONFIG, f"{name} is set, which is not supported")
    if values.get("bias", "none") != "none":
        raise BadAdapter(CONFIG, f"bias is {values['bias']!r}, which is not supported")
    rank, alpha, targets = (values.get(name) for name in ("r", "lora_alpha", "target_modules"))
    if type(rank) is not int or rank < 1:
        raise BadAdapter(CONFIG, f"r is {rank!r}, not a positive integer")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not abs(alpha) < _HUGE:
        raise BadAdapter(CONFIG, f"lora_alpha is {alpha!r}, not a number that can be used")
    if not isinstance(targets, list) or not all(isinstance(t, str) and t for t in targets):
        raise BadAdapter(CONFIG, "target_modules is not a list of module names")
    base_name = str(values.get(BASE) or "")
    return AdapterConfig(rank, float(alpha), tuple(targets), base_name)


def _peft_config(config: AdapterConfig) -> dict[str, Any]:
    return {
        BASE: config.base_name,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        # PEFT's own type is int; a whole number stays one.
        "lora_alpha": int(config.alpha) if config.alpha == int(config.alpha) else config.alpha,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": config.rank,
        "target_modules": list(config.targets),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
    }
