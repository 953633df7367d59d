"""What a pass keeps for the way back, and what becomes of one that does not fit."""

import os
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from session.engine.compute.attention import Sequences
from session.engine.compute.batch import Row
from session.engine.compute.engine import Compute
from session.engine.compute.lora import map_tensors, new_adapter
from session.engine.compute.memory import sizes_in_memory_errors
from session.engine.compute.model import BaseModel
from session.engine.port import BaseRef, EngineError, Loss
from support.golden import train
from support.tiny import LORA, tiny_datum

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
DATA = [tiny_datum(length) for length in (30, 7, 16)]

OUT_OF_MEMORY = """
import re, resource, sys
from pathlib import Path
from session.engine.compute.engine import Compute
from session.engine.port import BaseRef, EngineError, Loss
from support.golden import train
from support.tiny import ADAM, LORA, tiny_datum

compute = Compute(micro_batch_tokens=100_000)
compute.create_model("m", BaseRef("tiny", "tiny", Path(sys.argv[1])), LORA)
train(compute, [tiny_datum(7)], Loss.cross_entropy)
used = int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (used + 64 * 2**20, resource.RLIM_INFINITY))
try:
    train(compute, [tiny_datum(7)] + [tiny_datum(512)] * 40, Loss.cross_entropy)
except EngineError as error:
    print(error)
compute.clear_gradient("m")
train(compute, [tiny_datum(7)], Loss.cross_entropy)
print("step", compute.optim_step("m", ADAM).step)
"""


def kept(base: BaseModel, *, recompute: bool, tokens: int = 256) -> int:
    """Bytes that autograd keeps of a pass, beside the weights."""
    adapter = new_adapter(base.layers, replace(LORA, targets=LINEAR))
    leaves = replace(adapter, tensors=map_tensors(lambda t: t.requires_grad_(), adapter.tensors))
    linear = (each.linear.weight for each in base.layers.values())
    weights = {each.data_ptr() for each in [*linear, *leaves.tensors.values()]}
    seen: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    positions = torch.arange(tokens)
    with (
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
        base.slot.using(leaves),
        base.recompute.on(when=recompute),
    ):
        base.hidden(positions, positions, Sequences([tokens]))
    return sum(seen.values())


def test_what_a_pass_keeps_is_estimated_from_its_shapes(base: BaseModel) -> None:
    assert 0.7 < kept(base, recompute=False) / (256 * base.activation_bytes) < 1.5


def test_layers_that_compute_again_keep_little(base: BaseModel) -> None:
    assert kept(base, recompute=True) < 0.2 * kept(base, recompute=False)


def test_computing_again_changes_no_bit(ref: BaseRef) -> None:
    once, again = (Compute(micro_batch_tokens=64, activation_bytes=n) for n in (2**31, 0))
    for compute in (once, again):
        compute.create_model("m", ref, LORA)
    losses = [[each.loss for each in train(c, DATA, Loss.cross_entropy)] for c in (once, again)]
    assert losses[0] == losses[1]
    expected, found = once.model("m").gradient, again.model("m").gradient
    assert expected is not None
    assert found is not None
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_a_pass_that_does_not_fit_fails_with_its_sizes_and_the_session_goes_on(
    ref: BaseRef,
) -> None:
    command = [sys.executable, "-c", OUT_OF_MEMORY, str(ref.path)]
    path = os.pathsep.join(sys.path)  # pytest's own: it has the folder of `support`
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert re.fullmatch(
        "out of memory in a pass of 20487 tokens, the longest of them datum 1 with 512 "
        r"\(tried to allocate \d+ bytes\)",
        first,
    )
    assert second == "step 1"


def test_of_the_memory_of_all_accounts_an_accelerator_tells_nobody() -> None:
    row = Row(0, np.arange(7), {}, flat=True)
    said = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
        "of which 1.20 GiB is free. Of the allocated memory 77.95 GiB is in use by PyTorch."
    )
    with pytest.raises(EngineError) as caught, sizes_in_memory_errors([row]):
        raise torch.OutOfMemoryError(said)
    assert str(caught.value) == (
        "out of memory in a pass of 7 tokens, the longest of them datum 0 with 7 "
        "(tried to allocate 2.00 GiB)"
    )
