"""A base model in memory: read once, and shared by every adapter on it.

Shapes: N tokens of a pass, D hidden size, V vocabulary.
"""

import errno
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import AutoConfig

from session.engine.compute.architecture import context_length, require_known
from session.engine.compute.attention import NAME, Call, Plan, Sequences
from session.engine.compute.decoder import Decoder, find_decoder
from session.engine.compute.lora import Layers, LoraLinear, Slot, wrap_linears
from session.engine.compute.packed import Packed, can_pack
from session.engine.compute.recompute import Recompute
from session.engine.port import BaseRef, EngineError


class BaseModel:
    """`slot.using(adapter)` chooses what the calls within it compute with."""

    def __init__(self, ref: BaseRef, model: Any) -> None:
        self.ref = ref
        self.config = model.config
        self.vocabulary: int = model.config.vocab_size
        self.context: int = context_length(model.config)
        self.dtype: torch.dtype = model.dtype
        self.device: torch.device = model.device
        self.slot = Slot()
        self.layers: Layers = wrap_linears(model, self.slot)
        self._body: nn.Module = model.base_model
        self.head: LoraLinear = model.get_output_embeddings()
        self.recompute = Recompute(self._body)
        self.decoder: Decoder | None = None
        self._can_sample = False

    @property
    def precision(self) -> torch.dtype:
        """Of adapters, gradients, moments and losses: float32 where the base has less."""
        return torch.promote_types(self.dtype, torch.float32)

    @cached_property
    def activation_bytes(self) -> int:
        """What one token of a training pass keeps for the way back, about: the numbers that go
        into and come out of the linear layers."""
        body = (each.linear for each in self.layers.values() if each is not self.head)
        return sum(each.in_features + each.out_features for each in body) * self.dtype.itemsize

    def prepare_sampling(self, packed_bytes: int) -> None:
        """Once: the layers in few calls, where they are of that form; and on a CPU a second copy of
        the weights, if it takes no more than that."""
        if self._can_sample:
            return
        self._can_sample = True
        self.decoder = find_decoder(self._body, self.vocabulary, self.hidden)
        linears = [each.linear for each in self.layers.values()]
        size = sum(each.weight.nbytes for each in linears)
        if size <= packed_bytes and all(map(can_pack, linears)):
            self._pack()

    def _pack(self) -> None:
        alone = set(self.layers.values())
        for product in () if self.decoder is None else self.decoder.products:
            product.packed = Packed([each.linear for each in product.layers])
            alone -= set(product.layers)
        for layer in alone:
            layer.packed = Packed([layer.linear])

    def hidden(self, tokens_N: Tensor, positions_N: Tensor, plan: Plan) -> Tensor:
        """States after the last norm, [N, D]. `positions_N` count within each sequence."""
        output = self._body(
            input_ids=tokens_N[None], position_ids=positions_N[None], use_cache=False, plan=plan
        )
        states: Tensor = output.last_hidden_state
        return states[0]

    def sampled(self, tokens_N: Tensor, positions_N: Tensor, plan: Plan) -> Tensor:
        """The same states as `hidden`, for a pass of sampling: the last bits may differ."""
        return (self.decoder or self).hidden(tokens_N, positions_N, plan)

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


def load_base(
    ref: BaseRef, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> BaseModel:
    """Read the directory; raises EngineError with the reason where it is no such model.

    A directory that is away may come back, so that is no EngineError. Without a directory,
    transformers would take the path for a name on a model hub.
    """
    if not ref.path.is_dir():
        missing = f"base model {ref.name} cannot be read: {ref.path} is missing"
        raise FileNotFoundError(errno.ENOENT, missing)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # theirs
    try:
        require_known(AutoConfig.from_pretrained(ref.path, trust_remote_code=False))
        model = _read(ref.path, dtype).to(device)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise EngineError(f"base model {ref.name} cannot be loaded: {error}") from error
    model.requires_grad_(requires_grad=False)
    model.eval()
    _require_plan(ref, model)
    return BaseModel(ref, model)


def _read(path: Path, dtype: torch.dtype) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        path,
        dtype=dtype,
        attn_implementation=NAME,
        # torch's grouped product, the default of experts, knows no float64.
        experts_implementation="eager" if dtype is torch.float64 else None,
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
    )


class _Noting:
    """One sequence, and which layers have asked for its attention."""

    def __init__(self) -> None:
        self.layers: set[int] = set()

    def attend(self, call: Call) -> Tensor:
        self.layers.add(call.layer)
        return Sequences([1]).attend(call)


@torch.no_grad()
def _require_plan(ref: BaseRef, model: Any) -> None:
    """Refuse a model of which a part does not go by the plan: sequences side by side would see each
    other. Some also cap or scale their logits; we call body and head apart, so refuse them."""
    plan, kind = _Noting(), type(model).__name__
    given = {
        "input_ids": torch.zeros(1, 1, dtype=torch.int64, device=model.device),
        "use_cache": False,
        "plan": plan,
    }
    try:
        ours = model.get_output_embeddings()(model.base_model(**given).last_hidden_state)
        theirs = model(**given).logits
    except TypeError as error:  # it takes no such arguments
        raise EngineError(f"base model {ref.name}: {kind} cannot be trained: {error}") from error
    if plan.layers != set(range(model.config.num_hidden_layers)):
        raise EngineError(
            f"base model {ref.name}: {kind} has layers beside those of transformers' attention"
        )
    if not torch.equal(ours, theirs):
        raise EngineError(f"base model {ref.name}: {kind} changes its logits after the head")
