"""GGUF files to plain Hugging Face directories, bfloat16, with the end token put right."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
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
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _quiet(), staged(target) as directory:
        quantized = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16
        )
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = _plain(quantized)
        tokenizer.model_max_length = model.config.max_position_embeddings
        _set_end_token(model, tokenizer)
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
        _make_portable(directory / TOKENIZER_CONFIG)


def _plain(quantized: "PreTrainedModel") -> "PreTrainedModel":
    """The same weights in a model that remembers nothing of the file they were packed in."""
    import torch

    config = type(quantized.config)(
        **{k: v for k, v in quantized.config.to_dict().items() if k != "quantization_config"}
    )
    with torch.device("meta"):
        model = type(quantized)(config)
    model.load_state_dict(quantized.state_dict(), assign=True)
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
    """Older readers know this class by its older name, and the file's origin is nobody's concern."""
    values = json.loads(path.read_text(encoding="utf-8"))
    values["tokenizer_class"] = "PreTrainedTokenizerFast"
    for name in ("backend", "is_local", "local_files_only"):
        values.pop(name, None)
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's progress bars, which would tear the ones of our caller."""
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()
