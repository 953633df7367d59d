"""Tiny random models of the real classes, one a name."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from session.engine.port import BaseRef
from support.tiny import write_companions

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
DENSE = (*ATTENTION, "gate_proj", "up_proj", "down_proj")

_SIZES: Mapping[str, Any] = {
    "vocab_size": 384,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_EXPERTS: Mapping[str, Any] = {"num_experts_per_tok": 2, "head_dim": 8}
_LOCAL = ["sliding_attention", "full_attention"]
WINDOW = 5

CONFIGS: Mapping[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**_SIZES, attention_bias=True, mlp_bias=True),
    "qwen2": lambda: transformers.Qwen2Config(**_SIZES, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(**_SIZES, head_dim=8),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **_SIZES,
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=WINDOW,
        layer_types=_LOCAL,
    ),
    "mistral": lambda: transformers.MistralConfig(**_SIZES, head_dim=8, sliding_window=WINDOW),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **_SIZES, **_EXPERTS, num_local_experts=4, sliding_window=WINDOW, layer_types=_LOCAL
    ),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        **_SIZES, **_EXPERTS, num_experts=4, moe_intermediate_size=24
    ),
    "phi3": lambda: transformers.Phi3Config(**_SIZES, sliding_window=WINDOW),
    # Refused as it comes, because it caps its logits; here without that.
    "gemma2": lambda: transformers.Gemma2Config(
        **_SIZES,
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=WINDOW,
        layer_types=_LOCAL,
        final_logit_softcapping=None,
    ),
}
SUPPORTED = tuple(name for name in CONFIGS if name != "gemma2")
TARGETS: Mapping[str, tuple[str, ...]] = {
    "gpt_oss": (*ATTENTION, "lm_head"),
    "qwen3_moe": (*ATTENTION, "lm_head"),
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head"),
}


def targets(name: str) -> tuple[str, ...]:
    return TARGETS.get(name, (*DENSE, "lm_head"))


def write_architecture(name: str, path: Path, **changes: Any) -> BaseRef:
    """Every tensor random: biases, norms and sinks too, which start as zeros and ones."""
    config = CONFIGS[name]()
    for key, value in changes.items():
        setattr(config, key, value)
    generator = torch.Generator().manual_seed(1)
    make: Callable[..., Any] = transformers.AutoModelForCausalLM.from_config
    model = make(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.2 * noise + (parameter.mean() if parameter.ndim == 1 else 0.0))
    model.save_pretrained(path)
    assert write_companions(path) == config.vocab_size
    return BaseRef(f"tiny/{name}", name, path)
