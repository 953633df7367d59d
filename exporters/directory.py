"""Directories of weights that somebody else has made: which kind they are, and whether they hold
what that kind needs. Headers and JSON alone are read, and nothing but the standard library does it,
so a client looks before it sends anything, and the service looks again.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporters import peft_adapter
from exporters.base import BadFile, read_json
from exporters.content import read_content
from exporters.peft_adapter import AdapterConfig
from exporters.shards import CONFIG, INDEX, Shards, read_shards
from exporters.tensor_file import TensorEntry, read_header

ADAPTER, MERGED, STATE = "checkpoints/hf", "checkpoints/hf_merged", "state"
ADAPTER_CONFIG, BASE = peft_adapter.CONFIG, peft_adapter.BASE
KINDS = {"adapter": (ADAPTER,), "state": (ADAPTER, STATE), "merged": (ADAPTER, MERGED)}
_COUNTERS, _OPTIMIZER, _GRADIENT = "state.json", "optimizer.safetensors", "gradient.safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq")
# Their texts are tokens, which may look like anything.
_TOKENS = frozenset(
    ("added_tokens.json", "special_tokens_map.json", "tokenizer.json", "vocab.json")
)
_TOKEN_KEYS = re.compile(r"chat_template|added_tokens_decoder|.*_tokens?")
_ABSOLUTE = re.compile(r"(/|~/|file:/|\\\\|[A-Za-z]:[\\/])[^\r\n]+")


@dataclass(frozen=True, slots=True)
class Layout:
    """`files` are all that is to be stored, by the path that each has in a version."""

    kind: str
    parts: Mapping[str, Path]
    files: Mapping[str, Path]


@dataclass(frozen=True, slots=True)
class Adapter:
    config: AdapterConfig
    tensors: Mapping[str, TensorEntry]


@dataclass(frozen=True, slots=True)
class Content:
    """What the headers of a layout say. `step` is the optimizer's."""

    adapter: Adapter | None
    merged: Shards | None
    step: int = 0
    seed: int = 0


def recognise(directory: Path, kind: str | None = None) -> Layout:
    """A version as it was pulled, a PEFT adapter, or a Hugging Face model. `kind` decides between
    the last two where a directory is both."""
    if not directory.is_dir():
        raise BadFile(str(directory), "is not a directory")
    if (directory / "checkpoints").is_dir():
        layout = _version(directory)
    else:
        part = ADAPTER if _holds_adapter(directory, kind) else MERGED
        files = {f"{part}/{name}": path for name, path in _files(directory).items()}
        layout = Layout("adapter" if part == ADAPTER else "merged", {part: directory}, files)
    if kind is not None and kind != layout.kind:
        raise BadFile(str(directory), f"holds a version of kind {layout.kind}, not {kind}")
    return layout


def examine(layout: Layout) -> Content:
    """Check everything that needs no base model; the first file that is wrong is named."""
    for name, path in layout.files.items():
        with named(name):
            _refuse_absolute_paths(path.name, read_content(path))
    adapter = merged = None
    step = seed = 0
    if ADAPTER in layout.parts:
        with named(f"{ADAPTER}/"):
            adapter = Adapter(*peft_adapter.read_headers(layout.parts[ADAPTER]))
    if MERGED in layout.parts:
        with named(f"{MERGED}/"):
            read_json(layout.parts[MERGED], CONFIG)
            merged = read_shards(layout.parts[MERGED])
    if STATE in layout.parts and adapter:
        with named(f"{STATE}/"):
            step, seed = _check_state(layout.parts[STATE], adapter)
    _refuse_stray(layout, merged)
    return Content(adapter, merged, step, seed)


def base_name(layout: Layout) -> str | None:
    """The base model that an adapter says it was trained on."""
    if ADAPTER not in layout.parts:
        return None
    config, _ = peft_adapter.read_headers(layout.parts[ADAPTER])
    return config.base_name or None


def _holds_adapter(directory: Path, kind: str | None) -> bool:
    has_adapter = (directory / peft_adapter.CONFIG).is_file()
    has_model = (directory / CONFIG).is_file() and (
        any(directory.glob("model*.safetensors")) or (directory / INDEX).is_file()
    )
    if has_adapter and has_model and kind is None:
        reason = "holds an adapter and a whole model; say which kind it is"
        raise BadFile(str(directory), reason)
    if has_adapter and (kind != "merged" or not has_model):
        return True
    if (directory / CONFIG).is_file():
        return False
    raise BadFile(
        str(directory),
        f"is neither a PEFT adapter ({peft_adapter.CONFIG}), nor a Hugging Face model ({CONFIG}), "
        f"nor a version that was pulled ({ADAPTER}/)",
    )


def _version(directory: Path) -> Layout:
    files = _files(directory)
    parts = {part: directory / part for part in (ADAPTER, MERGED, STATE) if _any(files, part)}
    kind = "state" if STATE in parts else "merged" if MERGED in parts else "adapter"
    for name in files:
        if not name.startswith(tuple(f"{part}/" for part in KINDS[kind])):
            raise BadFile(name, f"is no part of a version of kind {kind}")
    if kind != "merged" and ADAPTER not in parts:
        raise BadFile(f"{ADAPTER}/", "is missing")
    return Layout(kind, parts, files)


def _any(files: Mapping[str, Path], part: str) -> bool:
    return any(name.startswith(f"{part}/") for name in files)


def _files(directory: Path) -> dict[str, Path]:
    """Hidden ones belong to tools, not to weights. A link might lead out of the directory."""
    found = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory)
        if any(part.startswith(".") for part in name.parts):
            continue
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise BadFile(name.as_posix(), "is not a plain file; copy what it leads to (cp -rL)")
        if path.is_file():
            found[name.as_posix()] = path
    return found


def _refuse_absolute_paths(file: str, document: Any) -> None:
    """They mean something on one machine alone, and a loader may follow them on another."""
    if file in _TOKENS:
        return
    for where, text in _texts(document):
        if is_absolute(text):
            shown = text if len(text) <= 80 else f"{text[:80]}..."
            is_base = (file, where) == (ADAPTER_CONFIG, BASE)
            instead = "name the base instead" if is_base else "write a name instead"
            raise BadFile(file, f"{where} is the absolute path {shown!r}; {instead}")


def is_absolute(text: str) -> bool:
    """On any system, not only on this one."""
    return _ABSOLUTE.fullmatch(text) is not None


def _texts(document: Any) -> Iterator[tuple[str, str]]:
    """Every text in a JSON document that is not a token, with its place."""
    waiting: list[tuple[str, Any]] = [("", document)]
    while waiting:
        where, value = waiting.pop()
        match value:
            case str():
                yield where or "it", value
            case dict():
                kept = [key for key in value if not _TOKEN_KEYS.fullmatch(key)]
                waiting += [(f"{where}.{key}".lstrip("."), value[key]) for key in kept]
            case list():
                waiting += [(f"{where}[{index}]", each) for index, each in enumerate(value)]


def _refuse_stray(layout: Layout, merged: Shards | None) -> None:
    known = {f"{ADAPTER}/{peft_adapter.WEIGHTS}"}
    known |= {f"{STATE}/{name}" for name in (_OPTIMIZER, _GRADIENT)}
    known |= {f"{MERGED}/{name}" for name in merged or ()}
    for name in layout.files:
        if name.endswith(".safetensors") and name not in known:
            raise BadFile(name, "is no part of the weights: nothing names it")


def _check_state(directory: Path, adapter: Adapter) -> tuple[int, int]:
    """The optimizer goes by the adapter's names and shapes; its counters are whole numbers."""
    counters = read_json(directory, _COUNTERS)
    for key in ("step", "adam_step"):
        if type(counters.get(key)) is not int or not 0 <= counters[key] < 2**31:
            raise BadFile(_COUNTERS, f"{key} is {counters.get(key)!r}, not a whole number")
    names = {f"{moment}.{name}": name for moment in _MOMENTS for name in adapter.tensors}
    _check_like(directory / _OPTIMIZER, names, adapter)
    if counters.get("has_gradient"):
        _check_like(directory / _GRADIENT, {name: name for name in adapter.tensors}, adapter)
    rng = counters.get("rng")
    seed = rng.get("seed") if isinstance(rng, dict) else None
    if type(seed) is not int or not 0 <= seed < 2**63:
        raise BadFile(_COUNTERS, f"rng.seed is {seed!r}, not a seed")
    return counters["step"], seed


def _check_like(path: Path, names: Mapping[str, str], adapter: Adapter) -> None:
    if not path.is_file():
        raise BadFile(path.name, "is missing")
    found = read_header(path)
    for name in (*names, *found):
        if name not in found:
            raise BadFile(path.name, f"lacks {name}")
        if name not in names:
            raise BadFile(path.name, f"holds {name}, and the adapter has no such weight")
        shape, wanted = found[name].shape, adapter.tensors[names[name]].shape
        if shape != wanted:
            reason = f"{name} has shape {list(shape)}, the adapter's weight {list(wanted)}"
            raise BadFile(path.name, reason)


@contextmanager
def named(name: str) -> Iterator[None]:
    """Errors inside name the file by its path in the version; a name with a slash at its end is
    the folder."""
    try:
        yield
    except BadFile as error:
        whole = f"{name}{error.file}" if name.endswith("/") else name
        raise BadFile(whole, error.reason) from None
