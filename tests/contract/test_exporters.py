"""What other programs make of our files: plain transformers and PEFT load them and agree."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from exporters import peft_adapter
from exporters.merge import merge
from support.model_files import random_adapter, split
from support.tiny import tiny_model

ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PROMPT = torch.tensor([[5, 17, 200, 33, 9, 120]])

# PEFT still reads an attribute that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(PROMPT).logits
    return result


def load(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def reference_logits(base: Path, adapter: Path) -> torch.Tensor:
    return logits(PeftModel.from_pretrained(load(base), adapter))


# PEFT says that its own merge would be wrong for a tied head; we do not use its merge.
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("targets", [ALL_LINEAR, (*ALL_LINEAR, "lm_head"), ("lm_head",)])
def test_a_merged_model_equals_base_and_adapter(
    tmp_path: Path, tied: bool, shards: int, targets: tuple[str, ...]
) -> None:
    base = tiny_model(tmp_path / "base", tied=tied)
    adapter = random_adapter(base, tmp_path / "adapter", targets=targets)
    if shards > 1:
        split(base, shards=shards)
    merge(base, adapter, tmp_path / "merged")
    expected = reference_logits(base, adapter)
    assert (logits(load(tmp_path / "merged")) - expected).abs().max() < 1e-4
    assert (logits(load(base)) - expected).abs().max() > 0.1


def test_an_adapter_stays_what_peft_reads_when_peft_writes_it(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base")
    adapter = random_adapter(base, tmp_path / "adapter", targets=ALL_LINEAR)
    loaded = PeftModel.from_pretrained(load(base), adapter)
    loaded.save_pretrained(tmp_path / "again", save_embedding_layers=False)
    config, tensors = peft_adapter.read(adapter)
    again_config, again_tensors = peft_adapter.read(tmp_path / "again")
    assert set(again_config.targets) == set(config.targets)
    assert (again_config.rank, again_config.alpha) == (config.rank, config.alpha)
    assert again_tensors.keys() == tensors.keys()
    assert all(torch.equal(again_tensors[name], tensors[name]) for name in tensors)


def test_a_conversation_renders_the_same_after_export(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base")
    adapter = random_adapter(base, tmp_path / "adapter", targets=("q_proj",))
    merge(base, adapter, tmp_path / "merged")
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "Paris."},
        {"role": "user", "content": "Thank you."},
    ]
    rendered = {
        AutoTokenizer.from_pretrained(path).apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=True
        )
        for path in (base, adapter, tmp_path / "merged")
    }
    assert len(rendered) == 1


def test_looking_at_a_model_needs_no_torch(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base")
    code = (
        "import sys; from pathlib import Path; from exporters.hf_model import inspect;"
        "inspect(Path(sys.argv[1])); sys.exit('torch' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code, str(base)], check=True, cwd=root)
