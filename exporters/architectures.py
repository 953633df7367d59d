"""Which tensors a model needs: transformers fills in a missing one at random, so we check first."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from exporters.base import BadModel

Shapes = dict[str, tuple[int, ...]]
_NEEDED = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "vocab_size",
)
_LLAMA_LIKE = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


def expected_shapes(architecture: str, config: Mapping[str, Any]) -> Shapes | None:
    """Worked out from the config alone; None where only loading the model can tell."""
    if architecture not in _LLAMA_LIKE or any(type(config.get(key)) is not int for key in _NEEDED):
        return None
    if architecture == "Qwen3ForCausalLM" and "head_dim" not in config:
        return None
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    shapes: Shapes = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
    }
    for layer in range(config["num_hidden_layers"]):
        for name, shape in _layer_shapes(architecture, config):
            shapes[f"model.layers.{layer}.{name}"] = shape
    if not config.get("tie_word_embeddings", False):
        shapes["lm_head.weight"] = (vocabulary, hidden)
    return shapes


def missing_by_loading(path: Path) -> list[str]:
    """The tensors that transformers would have to invent; loads the model."""
    from transformers import AutoModelForCausalLM

    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            dtype="auto",
            output_loading_info=True,
            local_files_only=True,
            trust_remote_code=False,
        )
    except (ImportError, KeyError, OSError, RuntimeError, ValueError) as error:
        raise BadModel("config.json", f"transformers cannot load the model: {error}") from error
    return sorted(loaded[1]["missing_keys"])


def _layer_shapes(
    architecture: str, config: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    linear = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    for name, shape in linear.items():
        yield f"{name}.weight", shape
        if _has_bias(architecture, config, name):
            yield f"{name}.bias", shape[:1]
    yield "input_layernorm.weight", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)
    if architecture == "Qwen3ForCausalLM":
        yield "self_attn.q_norm.weight", (head,)
        yield "self_attn.k_norm.weight", (head,)


def _has_bias(architecture: str, config: Mapping[str, Any], name: str) -> bool:
    match architecture:
        case "Qwen2ForCausalLM":
            return name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        case "MistralForCausalLM":
            return False
        case _:
            key = "mlp_bias" if name.startswith("mlp.") else "attention_bias"
            return bool(config.get(key, False))
