"""The layers in few calls are those of transformers, or are not used."""

from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

from session.engine.compute.attention import NAME, Plan, Sequences
from session.engine.compute.decoder import find_decoder
from session.engine.compute.lora import Slot, wrap_linears
from session.engine.compute.model import load_base
from support.architectures import SUPPORTED, write_architecture

OF_ITS_FORM = ("llama", "mistral", "qwen2", "qwen3")
LENGTHS = [40, 9]


@torch.no_grad()
@pytest.mark.parametrize("name", OF_ITS_FORM)
def test_states_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    base = load_base(write_architecture(name, tmp_path), dtype=torch.float64)
    base.prepare_sampling(0)
    tokens = torch.randint(3, base.vocabulary, (sum(LENGTHS),))
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    assert base.decoder is not None
    found = base.sampled(tokens, positions, Sequences(LENGTHS))
    expected = base.hidden(tokens, positions, Sequences(LENGTHS))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)  # norms are of float32 there


@pytest.mark.parametrize("name", sorted({*SUPPORTED, "gemma2"} - {*OF_ITS_FORM}))
def test_others_keep_the_layers_of_transformers(tmp_path: Path, name: str) -> None:
    base = load_base(write_architecture(name, tmp_path))
    base.prepare_sampling(0)
    assert base.decoder is None


def test_layers_of_the_form_that_compute_something_else_are_found_out() -> None:
    """Granite's are named like Llama's, and multiply what they add."""
    config = transformers.GraniteConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=128, residual_multiplier=1.0,
    )  # fmt: skip
    config._attn_implementation = NAME
    for multiplier, is_found in ((1.0, True), (0.5, False)):
        config.residual_multiplier = multiplier
        torch.manual_seed(0)
        body = transformers.GraniteModel(config)
        wrap_linears(body, Slot())

        def hidden(
            tokens: Tensor, positions: Tensor, plan: Plan, *, body: torch.nn.Module
        ) -> Tensor:
            states: Tensor = body(
                input_ids=tokens[None], position_ids=positions[None], use_cache=False, plan=plan
            ).last_hidden_state
            return states[0]

        found = find_decoder(body, 128, lambda *given, body=body: hidden(*given, body=body))
        assert (found is not None) is is_found
