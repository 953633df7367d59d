"""A model directory packed into a GGUF file, as the tools around llama.cpp would write it."""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter, TokenType
from safetensors.numpy import load_file

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.layers": "blk",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def pack(model: Path, target: Path, *, end_id: int) -> Path:
    """Write `target` with `end_id` as the tokenizer's end token, right or wrong."""
    writer = GGUFWriter(target, "llama")
    config = json.loads((model / "config.json").read_text())
    _add_config(writer, config)
    _add_tokenizer(writer, model, end_id)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, tensor in load_file(model / "model.safetensors").items():
        for ours, theirs in NAMES.items():
            name = name.replace(ours, theirs)
        kind = name.split(".")[-2]
        writer.add_tensor(name, _interleave(tensor, heads[kind]) if kind in heads else tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _add_config(writer: GGUFWriter, config: dict[str, int]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(config["vocab_size"])


def _add_tokenizer(writer: GGUFWriter, model: Path, end_id: int) -> None:
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    special = {token["content"] for token in tokenizer["added_tokens"]}
    vocabulary = tokenizer["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens]
    )
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(end_id)
    writer.add_pad_token_id(end_id)
    writer.add_unk_token_id(0)
    writer.add_chat_template((model / "chat_template.jinja").read_text())


def _interleave(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """GGUF keeps the two halves of each rotary pair side by side."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))
