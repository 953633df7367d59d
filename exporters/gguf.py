"""GGUF files to plain Hugging Face directories, bfloat16, with the end token put right."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporters.base import staged
from exporters.chat_template import TEMPLATE_FILE, TOKENIZER_CONFIG, ChatTemplate, end_of_turn

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def convert(gguf: Path, target: Path) -> None:
    """Write `target` complete or not at all, with the end token that its chat template writes.

    The tokenizer inside a GGUF file may name another one, and a model so described never stops.
    """
    from transformers import AutoTokenizer

    with _quiet(), staged(target) as directory:
        model = _load(gguf)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        tokenizer.model_max_length = model.config.max_position_embeddings
        _set_end_token(model, tokenizer)
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
        _make_portable(directory / TOKENIZER_CONFIG)


def _load(gguf: Path) -> "PreTrainedModel":
    """The weights in a model that remembers nothing of the file they were packed in."""
    import torch
    import transformers

    # Where a kernel exists, newer versions would leave the weights packed.
    packing = getattr(transformers, "GgufConfig", None)
    options = {"quantization_config": packing(dequantize=True)} if packing else {}
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, **options
    )
    values = loaded.config.to_dict()
    for name in ("quantization_config", "_model_name_or_path"):
        values.pop(name, None)
    with torch.device("meta"):
        model = type(loaded)(type(loaded.config)(**{**values, "dtype": torch.bfloat16}))
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in loaded.state_dict().items()}
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    return model


def _set_end_token(model: "PreTrainedModel", tokenizer: Any) -> None:
    if not tokenizer.chat_template:
        return
    template = ChatTemplate(TEMPLATE_FILE, tokenizer.chat_template, tokenizer.special_tokens_map)
    end = end_of_turn(template, tokenizer.backend_tokenizer)
    if end is None:
        return
    # Assigning them also marks the token special, so that decoding leaves it out.
    tokenizer.eos_token = tokenizer.pad_token = end.text
    for config in (model.config, model.generation_config):
        config.eos_token_id = config.pad_token_id = end.id


def _make_portable(path: Path) -> None:
    """Older readers know this class by its older name, and where the file was is nobody's need."""
    values = json.loads(path.read_text(encoding="utf-8"))
    values["tokenizer_class"] = "PreTrainedTokenizerFast"
    for name in ("backend", "is_local", "local_files_only"):
        values.pop(name, None)
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the libraries' progress bars, which would tear the ones of our caller."""
    with redirect_stderr(io.StringIO()):
        yield
