"""Hugging Face model directories: what we admit as a base, and as the result of a merge."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporters.architectures import expected_shapes, missing_by_loading
from exporters.base import BadModel, read_json
from exporters.chat_template import end_of_turn, read_template, read_tokenizer_config
from exporters.companions import GENERATION_CONFIG, companions
from exporters.shards import CONFIG, HEAD, INDEX, WEIGHTS, Shards, embedding_name, read_shards
from exporters.tensor_file import TensorEntry, is_pickled

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER = "tokenizer.json"
_READ = 2**20


@dataclass(frozen=True, slots=True)
class FileInfo:
    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """`end_ids` are those of generation_config.json, then those that only config.json names."""

    path: Path
    digest: str
    architecture: str
    context_length: int
    vocab_size: int
    end_ids: tuple[int, ...]
    files: tuple[FileInfo, ...]


def inspect(path: Path) -> ModelInfo:
    """Everything we rely on later, checked now; the first file that is wrong is named."""
    _refuse_pickles(path)
    config = read_json(path, CONFIG)
    name = architecture(config)
    vocab_size = _positive(config, "vocab_size")
    context = _positive(config, "max_position_embeddings", "n_positions")
    shards = read_shards(path)
    _check_tensors(path, name, config, shards)
    ends = end_ids(path, config, vocab_size)
    check_tokenizer(path, vocab_size, ends)
    names = {CONFIG, *shards, *(str(name) for name in companions(path))}
    if (path / INDEX).is_file():
        names.add(INDEX)
    files = tuple(_describe(path, name) for name in sorted(names))
    return ModelInfo(path, _digest(files), name, context, vocab_size, ends, files)


def _refuse_pickles(path: Path) -> None:
    if not path.is_dir():
        raise BadModel(str(path), "is not a directory")
    for file in sorted(path.iterdir()):
        if file.is_file() and is_pickled(file):
            raise BadModel(file.name, "holds pickled data, which is never loaded; remove it")


def architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise BadModel(CONFIG, "names no architecture (architectures)")
    name = names[0]
    if not name.endswith(("ForCausalLM", "LMHeadModel")):
        raise BadModel(CONFIG, f"{name} is not a causal language model")
    if config.get("quantization_config"):
        raise BadModel(CONFIG, "the weights are quantized (quantization_config)")
    return name


def _positive(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if type(value) is int and value > 0:
            return value
        if value is not None:
            raise BadModel(CONFIG, f"{name} is {value!r}, not a positive integer")
    raise BadModel(CONFIG, f"{names[0]} is missing")


def _check_tensors(path: Path, model: str, config: Mapping[str, Any], shards: Shards) -> None:
    weights = INDEX if (path / INDEX).is_file() else WEIGHTS
    found = {name: entry for tensors in shards.values() for name, entry in tensors.items()}
    expected = expected_shapes(model, config)
    if expected is None:
        for name in missing_by_loading(path):
            raise BadModel(weights, f"lacks the tensor {name}, which {CONFIG} calls for")
        return
    for name, shape in expected.items():
        if name not in found:
            raise BadModel(weights, f"lacks the tensor {name}, which {CONFIG} calls for")
        if found[name].shape != shape:
            actual = list(found[name].shape)
            raise BadModel(weights, f"{name} has shape {actual}, {CONFIG} calls for {list(shape)}")
    for name in found.keys() - expected.keys():
        if name != HEAD and not name.endswith(".rotary_emb.inv_freq"):
            raise BadModel(weights, f"holds the tensor {name}, which {CONFIG} has no place for")
    if HEAD in found and HEAD not in expected:
        check_tied(path, shards)


def check_tied(path: Path, shards: Shards) -> None:
    """A loader drops one of two tied tensors, so they have to be the same."""
    first, second = (_tensor_hash(path, shards, name) for name in (HEAD, embedding_name(shards)))
    if first != second:
        reason = f"tie_word_embeddings is true, but {HEAD} differs from the embedding"
        raise BadModel(CONFIG, reason)


def _tensor_hash(path: Path, shards: Shards, name: str) -> str:
    file, entry = next((f, tensors[name]) for f, tensors in shards.items() if name in tensors)
    digest, left = hashlib.sha256(), entry.size
    with (path / file).open("rb") as stream:
        stream.seek((path / file).stat().st_size - _data_size(shards[file]) + entry.begin)
        while piece := stream.read(min(left, _READ)):
            digest.update(piece)
            left -= len(piece)
    return digest.hexdigest()


def _data_size(tensors: Mapping[str, TensorEntry]) -> int:
    return sum(entry.size for entry in tensors.values())


def end_ids(path: Path, config: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    """Those of generation_config.json, then those that only `config` names."""
    sources = {CONFIG: config}
    if (path / GENERATION_CONFIG).is_file():
        sources = {GENERATION_CONFIG: read_json(path, GENERATION_CONFIG), **sources}
    found: dict[int, None] = {}
    for file, values in sources.items():
        value = values.get("eos_token_id")
        ids = [] if value is None else value if isinstance(value, list) else [value]
        for token in ids:
            if type(token) is not int or not 0 <= token < vocab_size:
                raise BadModel(file, f"eos_token_id {token!r} is no token id below {vocab_size}")
            found[token] = None
    return tuple(found)


def check_tokenizer(path: Path, vocab_size: int, ends: tuple[int, ...]) -> None:
    """Every token has its row, and what ends a turn ends the generation."""
    tokenizer = _load_tokenizer(path)
    highest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if highest >= vocab_size:
        missing = f"{highest + 1 - vocab_size} token rows missing"
        raise BadModel(
            TOKENIZER, f"has the token id {highest}, the model knows {vocab_size}: {missing}"
        )
    template = read_template(path, read_tokenizer_config(path))
    end = end_of_turn(template, tokenizer) if template else None
    if template and end and end.id not in ends:
        raise BadModel(
            template.file,
            f"the chat template ends the assistant's turn with {end.text!r} (id {end.id}), "
            f"which is not among the end-of-sequence ids {list(ends)} "
            f"of {GENERATION_CONFIG} and {CONFIG}",
        )


def _load_tokenizer(path: Path) -> "Tokenizer":
    from tokenizers import Tokenizer

    file = path / TOKENIZER
    if not file.is_file():
        raise BadModel(TOKENIZER, f"is missing in {path}")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise BadModel(TOKENIZER, f"is not a tokenizer: {error}") from error


def _describe(path: Path, name: str) -> FileInfo:
    with (path / name).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileInfo(name, (path / name).stat().st_size, digest)


def _digest(files: tuple[FileInfo, ...]) -> str:
    lines = "".join(f"{file.path}\0{file.size}\0{file.sha256}\n" for file in files)
    return "sha256:" + hashlib.sha256(lines.encode()).hexdigest()
