"""A random Llama directory with a real tokenizer, small enough to make anew in every test."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from session.engine.port import AdamParams, BaseRef, Datum, LoraConfig, Loss

HIDDEN = 48
HEADS = 4
KV_HEADS = 2
LAYERS = 2
INTERMEDIATE = 96
CONTEXT = 512
END = "<|im_end|>"
SPECIAL = ["<|endoftext|>", "<|im_start|>", END]  # ids 0, 1, 2
END_ID = 2

LORA = LoraConfig(4, 8.0, ("q_proj", "v_proj", "down_proj", "lm_head"), seed=7)
ADAM = AdamParams(1e-2, beta1=0.9, beta2=0.95, eps=1e-12, weight_decay=0.0, grad_clip_norm=None)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

CORPUS = [
    "user assistant system",
    "The capital of France is Paris. The answer is on the next page.",
    "What is the name of the river that runs through the old town?",
    "A lighthouse keeper counts the ships, one by one, and writes their names down.",
    "We train a small model, save it, load it again and see that nothing has changed.",
    "Hello! How are you today? I am well, thank you; and the weather is fine.",
]


def tiny_model(path: Path, *, tied: bool = True, seed: int = 0) -> Path:
    """Write a complete Hugging Face directory (float32 safetensors) and return it."""
    path.mkdir(parents=True, exist_ok=True)
    vocabulary = write_companions(path)
    save_file(
        _tensors(vocabulary, tied=tied, seed=seed),
        path / "model.safetensors",
        metadata={"format": "pt"},
    )
    _write(path / "config.json", _config(vocabulary, tied=tied))
    return path


def write_companions(path: Path) -> int:
    """All but weights and configuration; returns the size of the vocabulary."""
    tokenizer = _tokenizer()
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    _write(path / "generation_config.json", {"bos_token_id": 1, "eos_token_id": END_ID})
    _write(path / "tokenizer_config.json", _tokenizer_config())
    return tokenizer.get_vocab_size()


def tiny_ref(path: Path, *, tied: bool = True, seed: int = 0) -> BaseRef:
    """The same as an engine takes it; directories of other content have other digests."""
    return BaseRef(f"tiny/{tied}", f"{tied}-{seed}", tiny_model(path, tied=tied, seed=seed))


def tiny_datum(length: int, *, loss: Loss = Loss.cross_entropy, seed: int = 0) -> Datum:
    """Random tokens, weights, and whatever else the loss needs; ratios lie around one."""
    random = np.random.default_rng((seed, length))
    tokens = random.integers(3, 300, length + 1)
    inputs: dict[str, npt.NDArray[Any]] = {
        "target_tokens": tokens[1:],
        "weights": random.uniform(-0.5, 1.5, length).astype(np.float32),
    }
    if loss is not Loss.cross_entropy:
        inputs["logprobs"] = random.uniform(-7.0, -5.0, length).astype(np.float32)
        inputs["advantages"] = random.standard_normal(length).astype(np.float32)
    return Datum(tokens[:-1], inputs)


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 2, trainer)
    return tokenizer


def _tensors(vocabulary: int, *, tied: bool, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    head = HIDDEN // HEADS

    def normal(rows: int, columns: int, scale: float = 0.15) -> npt.NDArray[np.float32]:
        return (scale * random.standard_normal((rows, columns))).astype(np.float32)

    tensors = {"model.embed_tokens.weight": normal(vocabulary, HIDDEN, 0.3)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        tensors |= {
            f"{prefix}.input_layernorm.weight": np.ones(HIDDEN, np.float32),
            f"{prefix}.post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
            f"{prefix}.self_attn.q_proj.weight": normal(HEADS * head, HIDDEN),
            f"{prefix}.self_attn.k_proj.weight": normal(KV_HEADS * head, HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": normal(KV_HEADS * head, HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": normal(HIDDEN, HEADS * head),
            f"{prefix}.mlp.gate_proj.weight": normal(INTERMEDIATE, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": normal(INTERMEDIATE, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": normal(HIDDEN, INTERMEDIATE),
        }
    tensors["model.norm.weight"] = np.ones(HIDDEN, np.float32)
    if not tied:
        tensors["lm_head.weight"] = normal(vocabulary, HIDDEN, 0.3)
    return tensors


def _config(vocabulary: int, *, tied: bool) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HIDDEN // HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "attention_bias": False,
        "mlp_bias": False,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": END_ID,
        "pad_token_id": END_ID,
        "dtype": "float32",
    }


def _tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": END,
        "pad_token": END,
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
