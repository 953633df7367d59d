"""What a model's configuration says about whether we can compute it, and how far."""

from collections.abc import Iterator, Mapping
from typing import Any

_ATTENTION = frozenset(("full_attention", "sliding_attention"))


def require_known(config: Any) -> None:
    """Raises ValueError with the reason where our attention would not be the model's."""
    if config.get_text_config() is not config:
        raise ValueError(f"{config.model_type} takes more than text")
    if (quantization := getattr(config, "quantization_config", None)) is not None:
        method = quantization.get("quant_method", "some method")
        raise ValueError(f"its weights are quantised by {method}: store them in bfloat16")
    if unknown := set(getattr(config, "layer_types", None) or ()) - _ATTENTION:
        raise ValueError(f"it has layers of {', '.join(sorted(unknown))}, which are not supported")
    backwards = getattr(config, "use_bidirectional_attention", None)
    if backwards or not getattr(config, "is_causal", True):
        raise ValueError("its tokens see those after them")


def context_length(config: Any) -> int:
    """The longest sequence. `longrope` turns every position of a sequence that is longer than the
    original context in another way, so numbers would depend on what stands beside or comes after:
    such a model ends at its original context."""
    longest = [
        rope["original_max_position_embeddings"]
        for rope in _ropes(config)
        if rope.get("rope_type") == "longrope"
    ]
    return int(min([config.max_position_embeddings, *longest]))


def _ropes(config: Any) -> Iterator[Mapping[str, Any]]:
    """One for the model, or one for each type of layer."""
    found: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    if "rope_type" in found:
        yield found
    else:
        yield from (each for each in found.values() if each is not None)
