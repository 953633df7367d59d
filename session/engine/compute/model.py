"""A base model in memory: read once in float32, and shared by every adapter on it.

Shapes: N tokens of a pass, D hidden size, V vocabulary.
"""

import errno
import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from torch import Tensor, nn

from session.engine.compute.attention import NAME, Plan, Sequences
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
        self.head: LoraLinear = model.get_output_embeddings()

    def hidden(self, tokens_N: Tensor, positions_N: Tensor, plan: Plan) -> Tensor:
        """States after the last norm, [N, D]. `positions_N` count within each sequence."""
        output = self._body(
            input_ids=tokens_N[None], position_ids=positions_N[None], use_cache=False, plan=plan
        )
        states: Tensor = output.last_hidden_state
        return states[0]

    def logits(self, hidden: Tensor) -> Tensor:
        output: Tensor = self.head(hidden)
        return output

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
        attn_implementation=NAME,
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
    )


@torch.no_grad()
def _require_plain_head(ref: BaseRef, model: Any) -> None:
    """Some architectures cap or scale their logits; we call body and head apart, so refuse them."""
    given = {
        "input_ids": torch.zeros(1, 1, dtype=torch.int64),
        "use_cache": False,
        "plan": Sequences([1]),
    }
    ours = model.get_output_embeddings()(model.base_model(**given).last_hidden_state)
    if not torch.equal(ours, model(**given).logits):
        kind = type(model).__name__
        raise EngineError(f"base model {ref.name}: {kind} changes its logits after the head")
