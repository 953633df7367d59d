"""Input that cannot be computed gets an answer that says what is wrong, and nothing is lost."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import modelyard
from modelyard import (
    AdamParams,
    ConflictError,
    InvalidRequestError,
    ModelInput,
    NotFoundError,
    OperationFailed,
    SamplingParams,
)
from support.service import Service
from support.service import modelyard as command
from support.tiny import CONTEXT
from support.training import ADAM, batch, connect, datum, prompt, step

NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def trained(service: Service) -> Iterator[modelyard.TrainingClient]:
    """One session for all that must leave it as it was."""
    with connect(service, "bad-input") as client:
        training = client.create_lora_training_client("tiny", rank=4, seed=7, targets=["q_proj"])
        step(training, batch(1))
        training.save_state().result()
        training.save_weights_for_sampler().result()
        yield training
        training.stop()


def inputs(**changes: Any) -> modelyard.Datum:
    """A datum of three tokens with one of its inputs changed, whatever the client says to it."""
    made = datum([5, 6, 7, 8])
    for key, value in changes.items():
        made.loss_fn_inputs[key] = modelyard.TensorData.from_numpy(np.asarray(value))
    return made


BAD_DATA = [
    ([datum([5, 384, 7])], "datum 0: tokens[1] is 384, outside the vocabulary of 384"),
    ([datum([5, 6, 9999])], "datum 0: target_tokens[1] is 9999, outside the vocabulary of 384"),
    ([datum([5, 6]), datum([-1, 6])], "datum 1: tokens[0] is -1"),
    ([datum([5] * (CONTEXT + 2))], f"datum 0: {CONTEXT + 1} tokens, longer than the context 512"),
    ([inputs(weights=[1.0, NAN, 1.0])], "datum 0: weights"),
    ([inputs(weights=[1.0, INF, 1.0])], "datum 0: weights"),
    ([inputs(surplus=[1.0, 1.0, 1.0])], "'surplus' is not an input of cross_entropy"),
]


@pytest.mark.parametrize(("data", "said"), BAD_DATA)
def test_a_datum_that_cannot_be_computed_is_named(
    trained: modelyard.TrainingClient, data: list[modelyard.Datum], said: str
) -> None:
    for call in (trained.forward, trained.forward_backward):
        with pytest.raises(OperationFailed) as caught:
            call(data).result()
        assert said in caught.value.message
        assert caught.value.kind == "invalid"
        assert caught.value.operation_id in str(caught.value)
    trained.clear_gradient().result()


def test_lengths_that_differ_name_datum_and_key(trained: modelyard.TrainingClient) -> None:
    """The client says so before anything is sent; the service says it to who has another client."""
    short = modelyard.Datum(prompt([5, 6, 7]), {"target_tokens": [6, 7]})
    with pytest.raises(modelyard.InvalidInput, match=r"data\[1\].*'target_tokens'.*length 2.*3"):
        trained.forward([datum([5, 6]), short])
    with pytest.raises(modelyard.InvalidInput, match="at least one Datum"):
        trained.forward_backward([])


@pytest.mark.parametrize(
    ("loss", "config", "said"),
    [
        ("hinge", None, "'hinge' is unknown; known are cross_entropy"),
        ("cross_entropy", {"temperature": 1.0}, "temperature"),
        ("ppo", {"clip": 1.0}, "clip"),
        ("ppo", {"clip_low_threshold": NAN}, "clip_low_threshold"),
    ],
)
def test_a_loss_or_its_configuration_that_is_unknown_is_named(
    trained: modelyard.TrainingClient, loss: str, config: dict[str, float] | None, said: str
) -> None:
    data = [datum([5, 6, 7])]
    if loss == "ppo":
        data = [inputs(logprobs=[-1.0] * 3, advantages=[1.0] * 3)]
    with pytest.raises(OperationFailed) as caught:
        trained.forward(data, loss, config).result()
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (AdamParams(beta1=1.0), "beta1"),
        (AdamParams(beta2=-0.1), "beta2"),
        (AdamParams(eps=0.0), "eps"),
        (AdamParams(weight_decay=NAN), "weight_decay"),
        (AdamParams(lora_plus_ratio=0.0), "lora_plus_ratio"),
    ],
)
def test_bad_optimizer_parameters_keep_the_gradient(
    trained: modelyard.TrainingClient, params: AdamParams, field: str
) -> None:
    trained.clear_gradient()
    trained.forward_backward(batch(2))
    with pytest.raises(OperationFailed, match=field):
        trained.optim_step(params).result()
    assert trained.optim_step(AdamParams(0.0)).result().metrics["grad_norm"] > 0


def test_a_step_without_a_gradient_is_refused(trained: modelyard.TrainingClient) -> None:
    trained.clear_gradient()
    with pytest.raises(OperationFailed, match="no gradient"):
        trained.optim_step(ADAM).result()


def test_a_loss_that_is_not_finite_leaves_the_weights(
    trained: modelyard.TrainingClient,
) -> None:
    trained.clear_gradient()
    before = trained.forward(batch(3)).result().loss
    overflows = trained.forward_backward([inputs(weights=[3e38, 3e38, 3e38])])
    with pytest.raises(OperationFailed, match="datum 0: the loss is inf"):
        overflows.result()
    with pytest.raises(OperationFailed, match="since the last step failed"):
        trained.optim_step(ADAM).result()
    assert trained.forward(batch(3)).result().loss == before


SAMPLES: list[tuple[list[int], SamplingParams, str]] = [
    ([5] * (CONTEXT + 1), SamplingParams(max_tokens=1), "context"),
    ([5] * CONTEXT, SamplingParams(max_tokens=1), "context"),
    ([5] * 500, SamplingParams(max_tokens=13), "context"),
    ([5, 384], SamplingParams(max_tokens=1), "vocabulary"),
    ([5, -1], SamplingParams(max_tokens=1), "vocabulary"),
]


@pytest.mark.parametrize(("tokens", "params", "said"), SAMPLES)
def test_a_prompt_that_does_not_fit_is_refused(
    service: Service,
    trained: modelyard.TrainingClient,
    tokens: list[int],
    params: SamplingParams,
    said: str,
) -> None:
    with connect(service) as client:
        before = client.usage().tokens
        sampler = client.create_sampling_client(session=trained.session_id)
        with pytest.raises(InvalidRequestError, match=said):
            sampler.sample(ModelInput.from_ints(tokens), params).result()
        assert client.usage().tokens == before


def test_the_whole_context_can_be_used(service: Service, trained: modelyard.TrainingClient) -> None:
    with connect(service) as client:
        sampler = client.create_sampling_client(session=trained.session_id)
        params = SamplingParams(max_tokens=12, stop=[])
        answer = sampler.sample(ModelInput.from_ints([5] * (CONTEXT - 12)), params).result()
        assert len(answer.sequences[0].tokens) == 12
        assert len(sampler.compute_logprobs(prompt([5] * CONTEXT)).result()) == CONTEXT


Call = Callable[[modelyard.ServiceClient], Any]
WRONG: list[tuple[Call, type[Exception], str]] = [
    (lambda c: c.create_lora_training_client("nope"), NotFoundError, "this service has:.*tiny"),
    (lambda c: c.create_lora_training_client("tiny", rank=999), InvalidRequestError, "lora.rank"),
    (
        lambda c: c.create_lora_training_client("tiny", targets=["q_porj"]),
        modelyard.SessionNotRunning,
        "q_porj",
    ),
    (lambda c: c.create_training_client_from_state("nope@1"), NotFoundError, "'nope'"),
    (lambda c: c.create_training_client_from_state("bad-input@99"), NotFoundError, "bad-input@99"),
    (
        lambda c: c.create_training_client_from_state_with_optimizer("bad-input@2"),
        ConflictError,
        "not resumable.*adapter.*lacks state/.*optimizer moments",
    ),
    (
        lambda c: c.promote("bad-input@1", "x").result(),
        ConflictError,
        "not promotable.*state.*hf_merged.*modelyard merge bad-input 1",
    ),
    (lambda c: c.promote("bad-input@99", "x").result(), NotFoundError, "bad-input@99"),
    (lambda c: c.merge("bad-input@99").result(), NotFoundError, "bad-input@99"),
    (lambda c: c.list_versions("nope"), NotFoundError, "nope"),
    (lambda c: c.rollback("nope").result(), NotFoundError, "nope"),
    (lambda c: c.get_training_client("nope"), NotFoundError, "nope"),
    (
        lambda c: c.create_sampling_client(weights="wgt_x").sample(prompt([5])).result(),
        NotFoundError,
        "wgt_x",
    ),
]


@pytest.mark.parametrize(("call", "error", "said"), WRONG)
def test_what_does_not_exist_or_fit_is_said(
    service: Service,
    trained: modelyard.TrainingClient,
    call: Call,
    error: type[Exception],
    said: str,
) -> None:
    with connect(service, "bad-input") as client, pytest.raises(error, match=said):
        call(client)


def test_a_failed_creation_names_its_reason_and_takes_no_memory(service: Service) -> None:
    with connect(service, "bad-input") as client:
        with pytest.raises(modelyard.SessionNotRunning, match="q_porj"):
            client.create_lora_training_client("tiny", targets=["q_porj"], name="misspelt")
        (failed,) = [s for s in client.list_sessions(status="failed") if s.name == "misspelt"]
        assert "q_porj" in (failed.error or "")


def test_a_version_of_other_shapes_is_not_loaded(
    service: Service, trained: modelyard.TrainingClient
) -> None:
    with connect(service, "bad-input") as client:
        other = client.create_lora_training_client("tiny", rank=8, targets=["q_proj"])
        before = other.forward(batch(1)).result().loss
        with pytest.raises(OperationFailed, match="rank"):
            other.load_state("bad-input@1").result()
        with pytest.raises(OperationFailed, match="not resumable"):
            other.load_state_with_optimizer("bad-input@2").result()
        assert other.forward(batch(1)).result().loss == before
        other.stop()


def test_a_token_that_may_not_is_told_what_it_needs(service: Service) -> None:
    with (
        connect(service, api_key="my-guess") as client,
        pytest.raises(modelyard.AuthenticationError, match="token unknown"),
    ):
        client.list_base_models()
    assert command(service.home, "accounts", "create", "viewers").returncode == 0
    words = ("--account", "viewers", "--name", "t", "--role", "viewer")
    token = command(service.home, "tokens", "create", *words).stdout.split()[-1]
    with (
        connect(service, api_key=token) as client,
        pytest.raises(modelyard.PermissionDeniedError, match="role member"),
    ):
        client.create_lora_training_client("tiny")
