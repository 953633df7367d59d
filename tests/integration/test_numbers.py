"""The service against plain torch, PEFT and transformers; float32 on both sides."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from peft import PeftModel
from torch import Tensor
from torch.nn.functional import logsigmoid

import modelyard
from session.engine.port import Loss
from support.plain import config_of, greedy_answer, greedy_tokens, load, plain_terms
from support.service import Service
from support.training import (
    ADAM,
    QUESTION,
    ask,
    batch,
    chat_client,
    connect,
    datum,
    download,
    prompt,
    step,
)

GROUP = "numbers"
TOKENS = [5, 17, 200, 33, 9, 120, 77, 41, 12, 250]
STEPS = 3

# PEFT still reads an attribute that transformers has renamed, and warns of a merge that we never
# ask it for.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning"),
]


def logprobs_of(model: Any, tokens: Sequence[int], targets: Sequence[int]) -> Tensor:
    logits = model(input_ids=torch.tensor([tokens])).logits[0]
    found: Tensor = logits.log_softmax(-1)[torch.arange(len(targets)), list(targets)]
    return found


def prompt_logprobs(model: Any) -> list[float]:
    with torch.no_grad():
        return logprobs_of(model, TOKENS[:-1], TOKENS[1:]).tolist()


def arrays(datum: modelyard.Datum) -> dict[str, npt.NDArray[Any]]:
    return {key: value.to_numpy() for key, value in datum.loss_fn_inputs.items()}


def policy_batch(training: modelyard.TrainingClient) -> list[modelyard.Datum]:
    """Recorded log-probabilities near the model's own, so that some ratios are clipped."""
    random = np.random.default_rng(0)
    data = batch(3)
    for each, seen in zip(data, training.forward(data).result().loss_fn_outputs, strict=True):
        noise = random.normal(0, 0.3, each.model_input.length)
        each.loss_fn_inputs["logprobs"] = modelyard.TensorData.from_numpy(
            seen["logprobs"].to_numpy() + noise
        )
        advantages = random.normal(0.5, 1.0, each.model_input.length)
        each.loss_fn_inputs["advantages"] = modelyard.TensorData.from_numpy(advantages)
    return data


def plain_losses(
    model: Any, data: Sequence[modelyard.Datum], loss: Callable[[list[Tensor]], Tensor]
) -> list[float]:
    """A training loop as anybody would write it: one sequence at a time, AdamW of torch."""
    trained = [p for p in model.parameters() if p.requires_grad]
    adam = torch.optim.AdamW(
        trained, lr=ADAM.learning_rate, betas=(0.9, 0.95), eps=1e-12, weight_decay=0
    )
    losses = []
    for _ in range(STEPS):
        adam.zero_grad()
        logprobs = [
            logprobs_of(
                model, each.model_input.to_ints(), each.loss_fn_inputs["target_tokens"].tolist()
            )
            for each in data
        ]
        total = loss(logprobs)
        torch.autograd.backward(total)
        adam.step()
        losses.append(total.item())
    return losses


@dataclass(frozen=True)
class Start:
    """A fresh session, and what PEFT makes of its adapter before the first step."""

    training: modelyard.TrainingClient
    model: Any


@pytest.fixture
def start(
    service: Service, training: modelyard.TrainingClient, tiny: Path, tmp_path: Path
) -> Start:
    saved = training.save_weights_for_sampler().result()
    adapter = download(service, saved.ref, tmp_path) / "checkpoints/hf"
    return Start(training, PeftModel.from_pretrained(load(tiny), adapter, is_trainable=True))


@pytest.mark.parametrize("loss", list(Loss))
def test_a_plain_training_loop_on_peft_has_the_same_losses(start: Start, loss: Loss) -> None:
    data = batch(3) if loss is Loss.cross_entropy else policy_batch(start.training)
    found = [step(start.training, data, loss, config_of(loss)) for _ in range(STEPS)]

    def total(logprobs: list[Tensor]) -> Tensor:
        pairs = zip(logprobs, data, strict=True)
        terms = [plain_terms(loss, found, arrays(each)) for found, each in pairs]
        return torch.cat(terms).sum()

    assert found == pytest.approx(plain_losses(start.model, data, total), rel=1e-5)
    assert len(set(found)) == STEPS


def preference(logprobs: list[Tensor]) -> Tensor:
    """As in DPO: the first of each pair is to become likelier than the second."""
    sums = torch.stack([each.sum() for each in logprobs]).reshape(-1, 2)
    return -logsigmoid(0.1 * (sums[:, 0] - sums[:, 1])).sum()


def test_a_custom_loss_trains_as_in_a_plain_loop(start: Start) -> None:
    data, found = batch(3), []
    for _ in range(STEPS):
        output = start.training.forward_backward_custom(
            data, lambda _, logprobs: (preference(logprobs), {"pairs": 2.0})
        )
        start.training.optim_step(ADAM)
        found.append(output.result().loss)
    assert output.result().metrics["pairs"] == 2.0
    assert found == pytest.approx(plain_losses(start.model, data, preference), rel=1e-5)
    assert found[-1] < found[0]


@dataclass(frozen=True)
class Trained:
    """A session after some steps, with an adapter and a merged version of the same weights."""

    client: modelyard.ServiceClient
    training: modelyard.TrainingClient
    adapter: str
    merged: str


@pytest.fixture(scope="module")
def trained(service: Service) -> Iterator[Trained]:
    with connect(service, GROUP) as client:
        training = client.create_lora_training_client("tiny", rank=4, seed=7, name=GROUP)
        for seed in range(STEPS):
            step(training, batch(seed))
        adapter, merged = training.save_weights_for_sampler(), training.save_merged()
        yield Trained(client, training, adapter.result().ref, merged.result().ref)
        training.stop()


@pytest.fixture(scope="module")
def merged_folder(
    trained: Trained, service: Service, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = download(service, trained.merged, tmp_path_factory.mktemp("merged"))
    return folder / "checkpoints/hf_merged"


def test_peft_loads_the_adapter_and_agrees(
    trained: Trained, service: Service, tiny: Path, tmp_path: Path
) -> None:
    folder = download(service, trained.adapter, tmp_path)
    model = PeftModel.from_pretrained(load(tiny), folder / "checkpoints/hf")
    expected, base = prompt_logprobs(model), prompt_logprobs(load(tiny))
    sampler = trained.client.create_sampling_client(version=trained.adapter)
    found = sampler.compute_logprobs(prompt(TOKENS)).result()
    assert found[0] is None
    assert found[1:] == pytest.approx(expected, abs=1e-4)
    assert found[1:] != pytest.approx(base, abs=0.1)


def test_transformers_loads_the_merged_version_and_agrees(
    trained: Trained, merged_folder: Path
) -> None:
    sampler = trained.client.create_sampling_client(version=trained.adapter)
    found = sampler.compute_logprobs(prompt(TOKENS)).result()
    assert found[1:] == pytest.approx(prompt_logprobs(load(merged_folder)), abs=1e-4)


def test_transformers_greedy_tokens_are_the_services(trained: Trained, merged_folder: Path) -> None:
    params = modelyard.SamplingParams(max_tokens=12, temperature=0)
    sampler = trained.client.create_sampling_client(session=trained.training.session_id)
    (sample,) = sampler.sample(prompt(TOKENS), params).result().sequences
    assert sample.tokens == greedy_tokens(merged_folder, TOKENS, limit=12)


def test_every_source_of_the_same_weights_agrees(trained: Trained) -> None:
    client = trained.client
    stored = trained.training.save_weights_and_get_sampling_client()
    samplers = [
        stored,
        client.create_sampling_client(session=GROUP),
        client.create_sampling_client(version=trained.adapter),
        client.create_sampling_client(version=trained.merged),
    ]
    found = [sampler.compute_logprobs(prompt(TOKENS)).result()[1:] for sampler in samplers]
    forward = trained.training.forward([datum(TOKENS)]).result()
    expected = forward.loss_fn_outputs[0]["logprobs"].tolist()
    for logprobs in found:
        assert logprobs == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampled_tokens_come_with_their_logprobs(
    trained: Trained, merged_folder: Path, temperature: float
) -> None:
    """Those of the tempered distribution, which is what was sampled from."""
    sampler = trained.client.create_sampling_client(session=GROUP)
    params = modelyard.SamplingParams(max_tokens=16, temperature=temperature, seed=3, stop=[])
    model = load(merged_folder)
    for sample in sampler.sample(prompt(TOKENS), params, num_samples=4).result().sequences:
        whole = torch.tensor([TOKENS + sample.tokens])
        with torch.no_grad():
            logits = model(input_ids=whole).logits[0, len(TOKENS) - 1 : -1]
        scores = (logits / temperature).log_softmax(-1)
        expected = scores[torch.arange(16), sample.tokens].tolist()
        assert sample.logprobs == pytest.approx(expected, abs=1e-4)


def test_samples_of_one_seed_are_the_same(trained: Trained) -> None:
    sampler = trained.client.create_sampling_client(version=trained.adapter)
    params = modelyard.SamplingParams(max_tokens=16, seed=3)
    one, again = (sampler.sample(prompt(TOKENS), params, 3).result() for _ in range(2))
    assert [s.tokens for s in one.sequences] == [s.tokens for s in again.sequences]
    assert len({tuple(s.tokens) for s in one.sequences}) == 3


def test_a_sampler_keeps_the_weights_of_its_place(training: modelyard.TrainingClient) -> None:
    before = training.save_weights_and_get_sampling_client()
    first = before.compute_logprobs(prompt(TOKENS)).result()
    step(training, batch())
    after = training.save_weights_and_get_sampling_client()
    assert before.compute_logprobs(prompt(TOKENS)).result() == first
    assert after.compute_logprobs(prompt(TOKENS)).result() != first


def test_step_zero_is_the_base_model(
    client: modelyard.ServiceClient, training: modelyard.TrainingClient, tiny: Path
) -> None:
    base = client.create_sampling_client(base_model="tiny")
    found = base.compute_logprobs(prompt(TOKENS)).result()
    session = client.create_sampling_client(session=training.session_id)
    assert session.compute_logprobs(prompt(TOKENS)).result() == found
    assert found[1:] == pytest.approx(prompt_logprobs(load(tiny)), abs=1e-4)


def test_a_deployment_says_what_plain_transformers_says(
    trained: Trained, merged_folder: Path, service: Service
) -> None:
    trained.client.promote(trained.merged, "numbers-live").result()
    with chat_client(service) as chat:
        expected = greedy_answer(merged_folder, QUESTION, limit=12)
        assert ask(chat, "numbers-live") == ask(chat, GROUP) == expected
