"""The engine on a GPU beside plain torch and PEFT on the CPU."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from session.engine.compute.engine import Compute
from session.engine.local import LocalEngine
from session.engine.port import BaseRef, EngineError, Loss, SampleRequest
from support.golden import finish, golden, restored, train, trained_adapter
from support.tiny import ADAM, LORA, tiny_datum, tiny_ref

DEVICE = "cuda"
DATA = [tiny_datum(length, seed=length) for length in (30, 7, 16)]
BUDGET = 512


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> BaseRef:
    return tiny_ref(tmp_path_factory.mktemp("base"), tied=False)


@pytest.fixture(scope="module")
def adapter(ref: BaseRef, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_adapter(ref, LORA, DATA, tmp_path_factory.mktemp("adapter"))


@pytest.fixture
def compute(ref: BaseRef, adapter: Path) -> Compute:
    return restored(Compute(micro_batch_tokens=BUDGET, device=DEVICE), ref, LORA, adapter)


@pytest.fixture
async def engine(ref: BaseRef) -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(micro_batch_tokens=BUDGET, device=DEVICE)
    await engine.create_model("m", base=ref, lora=LORA)
    yield engine
    await engine.close()


@pytest.fixture
def little_memory() -> Iterator[None]:
    """What is in use now, and 64 MiB."""
    torch.cuda.empty_cache()
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 64 * 2**20) / whole)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # in PEFT
@pytest.mark.parametrize("loss", list(Loss))
def test_losses_and_gradients_are_those_of_torch_on_a_cpu(
    compute: Compute, ref: BaseRef, adapter: Path, loss: Loss
) -> None:
    data = [tiny_datum(length, loss=loss, seed=length) for length in (30, 7, 16)]
    expected, found = golden(ref, adapter, data, loss), train(compute, data, loss)
    for output, terms in zip(found, expected.terms, strict=True):
        assert output.loss == pytest.approx(float(terms.sum()), abs=1e-5 * float(terms.abs().sum()))
    gradient = compute.model("m").gradient
    assert gradient is not None
    for name, wanted in expected.gradient.items():
        off = torch.linalg.vector_norm(gradient[name].cpu() - wanted)
        assert off <= 1e-4 * torch.linalg.vector_norm(wanted), name


def test_a_bfloat16_base_has_a_float32_adapter(ref: BaseRef) -> None:
    compute = Compute(micro_batch_tokens=BUDGET, device=DEVICE, dtype="bfloat16")
    compute.create_model("m", ref, LORA)
    train(compute, DATA, Loss.cross_entropy)
    assert compute.optim_step("m", ADAM).step == 1
    assert compute.model("m").base.dtype is torch.bfloat16
    for tensor in compute.model("m").adapter.tensors.values():
        assert (tensor.device.type, tensor.dtype) == (DEVICE, torch.float32)


async def test_sampled_logprobs_are_those_of_forward(engine: LocalEngine, ref: BaseRef) -> None:
    await engine.forward_backward("m", DATA, loss=Loss.cross_entropy, config={})
    await engine.optim_step("m", ADAM)
    prompt = DATA[0].tokens
    request = SampleRequest(ref, "m", prompt, max_tokens=40, stop_ids=(), seed=3)
    chunks = [chunk async for chunk in engine.sample(request)]
    tokens = [token for chunk in chunks for token in chunk.tokens]
    whole = np.concatenate([prompt, np.array(tokens)])
    targets = {"target_tokens": whole[1:]}
    datum = replace(DATA[0], tokens=whole[:-1], inputs=targets)
    (scored,) = await engine.forward("m", [datum], loss=Loss.cross_entropy, config={})
    sampled = [value for chunk in chunks for value in chunk.logprobs]
    np.testing.assert_allclose(sampled, scored.logprobs[len(prompt) - 1 :], atol=1e-4)


async def test_a_save_goes_on_bit_for_bit(
    engine: LocalEngine, ref: BaseRef, tmp_path: Path
) -> None:
    await engine.forward_backward("m", DATA, loss=Loss.cross_entropy, config={})
    await engine.optim_step("m", ADAM)
    await (await engine.save("m", tmp_path, with_optimizer=True))
    await engine.create_model("again", base=ref, lora=LORA)
    await engine.load("again", tmp_path, with_optimizer=True)
    losses = [
        await engine.forward(name, DATA, loss=Loss.cross_entropy, config={})
        for name in ("m", "again")
    ]
    assert [each.loss for each in losses[0]] == [each.loss for each in losses[1]]


def test_a_pass_that_does_not_fit_fails_and_the_session_goes_on(
    ref: BaseRef, little_memory: None
) -> None:
    compute = Compute(micro_batch_tokens=1_000_000, activation_bytes=2**50, device=DEVICE)
    compute.create_model("m", ref, LORA)
    large = [tiny_datum(512, seed=n) for n in range(400)]
    with pytest.raises(EngineError, match=r"out of memory in a pass of 204800 tokens"):
        finish(compute.forward_backward("m", large, Loss.cross_entropy, {}))
    compute.clear_gradient("m")
    train(compute, DATA, Loss.cross_entropy)
    assert compute.optim_step("m", ADAM).step == 1
