"""Arguments of a wrong type: each is refused by name, and nothing is sent."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import modelyard as my
from support.fake_service import KEY, MODEL, FakeService
from support.server import running

PROMPT = my.ModelInput.from_ints([1, 2])
DATUM = my.Datum(PROMPT, {"target_tokens": [1, 2]})


@pytest.fixture(scope="module")
def service() -> Iterator[my.ServiceClient]:
    with running(FakeService().app()) as url, my.ServiceClient(url, KEY, group="facts") as service:
        yield service


@pytest.fixture(scope="module")
def training(service: my.ServiceClient) -> my.TrainingClient:
    return service.create_lora_training_client(MODEL)


VALUES: list[tuple[str, Callable[[], Any]]] = [
    ("tokens must be token ids, not text", lambda: my.ModelInput.from_ints("Hello")),  # type: ignore[arg-type]
    ("tokens must be", lambda: my.ModelInput.from_ints(5)),  # type: ignore[arg-type]
    ("tokens must be", lambda: my.ModelInput.from_ints([1, "a"])),  # type: ignore[list-item]
    ("tokens must be", lambda: my.ModelInput.from_ints([1, 2.5])),  # type: ignore[list-item]
    ("tokens must be", lambda: my.ModelInput.from_ints([[1], [2, 3]])),  # type: ignore[list-item]
    ("chunks.*from_ints", lambda: my.ModelInput("Hello")),  # type: ignore[arg-type]
    (r"chunks\[0\]", lambda: my.ModelInput([1])),  # type: ignore[list-item]
    ("model_input must be", lambda: my.Datum([1], {})),  # type: ignore[arg-type]
    ("loss_fn_inputs must be", lambda: my.Datum(PROMPT, [1])),  # type: ignore[arg-type]
    ("temperature", lambda: my.SamplingParams(temperature="0")),  # type: ignore[arg-type]
    ("max_tokens", lambda: my.SamplingParams(max_tokens="5")),  # type: ignore[arg-type]
    ("seed", lambda: my.SamplingParams(seed="5")),  # type: ignore[arg-type]
    ("url must be", lambda: my.ServiceClient(8642)),  # type: ignore[arg-type]
    ("timeout must be", lambda: my.ServiceClient("http://a", "k", timeout="x")),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("reason", "make"), VALUES)
def test_values(reason: str, make: Callable[[], Any]) -> None:
    with pytest.raises(my.InvalidInput, match=reason):
        make()


CALLS: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = [
    ("data must be a list", "forward", (DATUM,), {}),
    (r"data\[0\] must be a Datum", "forward_backward", ([PROMPT],), {}),
    ("loss_fn must be a string", "forward_backward", ([DATUM], len), {}),
    (r"loss_fn_config\['clip'\]", "forward", ([DATUM],), {"loss_fn_config": {"clip": "a"}}),
    ("loss_fn must be a function", "forward_backward_custom", ([DATUM], "ppo"), {}),
    (r"adam_params.*AdamParams\(learning_rate", "optim_step", (1e-4,), {}),
    ("adam_params", "optim_step", ({},), {}),
    ("learning_rate must be a number", "optim_step", (my.AdamParams("1e-4"),), {}),  # type: ignore[arg-type]
    ("beta1 must be a number", "optim_step", (my.AdamParams(beta1=None),), {}),  # type: ignore[arg-type]
    ("description", "save_state", (5,), {}),
    ("metadata must be a dict", "save_merged", (), {"metadata": "x"}),
    (r"metrics\['loss'\]", "save_merged", (), {"metrics": {"loss": None}}),
    ("group must be", "save_weights_for_sampler", (), {"group": 5}),
    ("a version must be", "load_state", (5,), {}),
    ("a version must be", "load_state_with_optimizer", (None,), {}),
    ("metrics must be", "log", (0.5,), {}),
    ("step must be", "log", ({"reward": 1.0},), {"step": "x"}),
]


@pytest.mark.parametrize(("reason", "call", "given", "named"), CALLS)
def test_calls_of_a_training_client(
    training: my.TrainingClient, reason: str, call: str, given: Any, named: Any
) -> None:
    with pytest.raises(my.InvalidInput, match=reason):
        getattr(training, call)(*given, **named)


SERVICE: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = [
    ("base_model must be", "create_lora_training_client", (5,), {}),
    ("rank must be", "create_lora_training_client", (MODEL,), {"rank": "8"}),
    ("alpha must be", "create_lora_training_client", (MODEL,), {"alpha": "x"}),
    ("targets must be", "create_lora_training_client", (MODEL,), {"targets": "q_proj"}),
    ("name must be", "create_lora_training_client", (MODEL,), {"name": 5}),
    ("user_metadata", "create_lora_training_client", (MODEL,), {"user_metadata": [1]}),
    ("a version must be", "create_training_client_from_state", (5,), {}),
    ("a version must be", "create_training_client_from_state_with_optimizer", (5,), {}),
    ("session must be", "get_training_client", (5,), {}),
    ("base_model must be", "create_sampling_client", (5,), {}),
    ("'facts'", "create_sampling_client", (), {"version": "facts"}),
    ("status must be", "list_sessions", (5,), {}),
    ("group must be", "list_versions", (5,), {}),
    ("kind must be", "list_versions", (), {"kind": 5}),
    ("a version must be", "get_version", (5,), {}),
    ("'facts'", "merge", ("facts",), {}),
    ("name must be", "promote", ("facts@1", 5), {}),
    ("name must be", "rollback", (5,), {}),
    ("session must be", "usage", (5,), {}),
]


@pytest.mark.parametrize(("reason", "call", "given", "named"), SERVICE)
def test_calls_of_the_service_client(
    service: my.ServiceClient, reason: str, call: str, given: Any, named: Any
) -> None:
    with pytest.raises(my.InvalidInput, match=reason):
        getattr(service, call)(*given, **named)


SAMPLING: list[tuple[str, tuple[Any, ...]]] = [
    (r"prompt must be a ModelInput, such as ModelInput.from_ints\(ids\), not 'Hello'", ("Hello",)),
    ("prompt must be", ([1, 2],)),
    ("sampling_params must be", (PROMPT, {"max_tokens": 5})),
    ("stop", (PROMPT, my.SamplingParams(stop=[2.5]))),  # type: ignore[arg-type]
    ("num_samples", (PROMPT, None, "2")),
]


@pytest.mark.parametrize(("reason", "given"), SAMPLING)
def test_samples(service: my.ServiceClient, reason: str, given: Any) -> None:
    sampler = service.create_sampling_client(MODEL)
    with pytest.raises(my.InvalidInput, match=reason):
        sampler.sample(*given)


def test_a_prompt_to_score(service: my.ServiceClient) -> None:
    with pytest.raises(my.InvalidInput, match="prompt must be a ModelInput"):
        service.create_sampling_client(MODEL).compute_logprobs("Hello")  # type: ignore[arg-type]


def test_numpys_numbers_are_numbers(training: my.TrainingClient) -> None:
    params = my.AdamParams(learning_rate=np.float32(0.5))  # type: ignore[arg-type]
    assert training.optim_step(params).result(5).step == 1
    assert my.SamplingParams(max_tokens=np.int64(3)).max_tokens == 3  # type: ignore[arg-type]
