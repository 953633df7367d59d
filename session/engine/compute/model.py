"""A base model in memory: read once in float32, and shared by every adapter on it.

Shapes: B sequences, T positions, D hidden size, V vocabulary.
"""

import errno
import inspect
import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

from session.engine.compute.lora import LoraLinear, Slot, wrap_linears
from session.engine.port import BaseRef, EngineError


class BaseModel:
    """`slot.using(adapter)` chooses what the calls within it compute with."""

    def __init__(self, ref: BaseRef, model: Any) -> None:
        self.ref = ref
        self.config = model.config
        self.vocabulary: int = model.config.vocab_size
        self.context: int = model.config.max_position_embeddings
        self.slot = Slot()
        self.layers: Mapping[str, LoraLinear] = wrap_linears(model, self.slot)
        self._body: nn.Module = model.base_model
        self._head: nn.Module = model.get_output_embeddings()
        # transformers renamed the argument; 5.0 knows the old name only.
        names = inspect.signature(self._body.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"

    def hidden(self, tokens_BT: Tensor, cache: DynamicCache | None = None) -> Tensor:
        """States after the last norm, [B, T, D]. Right padding needs no mask: it is causal."""
        cached = {} if cache is None else {self._cache_name: cache}
        output = self._body(input_ids=tokens_BT, use_cache=cache is not None, **cached)
        states: Tensor = output.last_hidden_state
        return states

    def logits(self, hidden: Tensor) -> Tensor:
        output: Tensor = self._head(hidden)
        return output

    def new_cache(self) -> DynamicCache:
        return DynamicCache(config=self.config)

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """End-of-sequence ids: the generation config's, or the model's where that has none."""
        for file in ("generation_config.json", "config.json"):
            path = self.ref.path / file
            found = json.loads(path.read_text()).get("eos_token_id") if path.is_file() else None
            if found is not None:
                return frozenset([found] if isinstance(found, int) else found)
        return frozenset()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        path = self.ref.path / "tokenizer.json"
        if not path.is_file():
            raise EngineError(f"{self.ref.name} has no tokenizer.json: stop strings need one")
        return Tokenizer.from_file(str(path))


def load_base(ref: BaseRef) -> BaseModel:
    """Read the directory; raises EngineError with the reason where it is no such model.

    A directory that is away may come back, so that is no EngineError. Without a directory,
    transformers would take the path for a name on a model hub.
    """
    if not ref.path.is_dir():
        missing = f"base model {ref.name} cannot be read: {ref.path} is missing"
        raise FileNotFoundError(errno.ENOENT, missing)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # theirs
    try:
        model = _read(ref.path)
    except (OSError, ValueError, KeyError) as error:
        raise EngineError(f"base model {ref.name} cannot be loaded: {error}") from error
    model.requires_grad_(requires_grad=False)
    model.eval()
    _require_plain_head(ref, model)
    return BaseModel(ref, model)


def _read(path: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        path,
        dtype=torch.float32,
        attn_implementation="sdpa",
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
    )


@torch.no_grad()
def _require_plain_head(ref: BaseRef, model: Any) -> None:
    """Some architectures cap or scale their logits; we call body and head apart, so refuse them."""
    tokens_BT = torch.zeros(1, 1, dtype=torch.int64)
    states = model.base_model(input_ids=tokens_BT, use_cache=False).last_hidden_state
    ours = model.get_output_embeddings()(states)
    if not torch.equal(ours, model(input_ids=tokens_BT, use_cache=False).logits):
        kind = type(model).__name__
        raise EngineError(f"base model {ref.name}: {kind} changes its logits after the head")
