"""The `openai` package against the whole service: deployments, live sessions and versions."""

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

import modelyard
from support.service import Service
from support.training import QUESTION, ask, connect, eventually, lesson, step

GROUP = "openai-names"
ANSWER = "Paris is the answer."
ASKED: Any = [{"role": "user", "content": QUESTION}]
NAMES = ("openai-live", "openai-session", f"{GROUP}@1", f"{GROUP}@2")


@pytest.fixture(scope="module")
def training(service: Service) -> Iterator[modelyard.TrainingClient]:
    """A session, its state (version 1) and its merged weights (version 2), promoted."""
    with connect(service, GROUP) as client:
        training = client.create_lora_training_client("tiny", rank=4, seed=7, name=NAMES[1])
        for _ in range(10):
            step(training, [lesson(training, QUESTION, ANSWER)])
        training.save_state()
        client.promote(training.save_merged().result().ref, NAMES[0]).result()
        yield training
        training.stop()


every_name = pytest.mark.parametrize("model", NAMES)
pytestmark = pytest.mark.usefixtures("training")


@every_name
def test_a_stream_says_what_the_whole_answer_says(chat: openai.OpenAI, model: str) -> None:
    whole = chat.chat.completions.create(
        model=model, messages=ASKED, max_completion_tokens=4, temperature=0
    )
    stream = chat.chat.completions.create(
        model=model,
        messages=ASKED,
        max_completion_tokens=4,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    *pieces, last = stream
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert text == whole.choices[0].message.content
    assert last.usage == whole.usage
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 4
    assert {whole.model, last.model} == {model}
    assert pieces[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"


def test_all_names_of_the_same_weights_answer_alike(chat: openai.OpenAI) -> None:
    assert {ask(chat, model) for model in NAMES} == {ANSWER}


@every_name
def test_plain_completions_are_answered(chat: openai.OpenAI, model: str) -> None:
    answer = chat.completions.create(
        model=model, prompt="The answer is", max_tokens=5, temperature=0, logprobs=0
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    scores = answer.choices[0].logprobs
    assert scores is not None
    assert all(score <= 0 for score in scores.token_logprobs or [])


def test_deployments_and_running_sessions_are_models(chat: openai.OpenAI) -> None:
    assert {"openai-live", "openai-session"} <= {model.id for model in chat.models.list()}
    assert chat.models.retrieve("openai-live").object == "model"


def test_a_session_answers_with_its_current_weights(
    chat: openai.OpenAI, client: modelyard.ServiceClient
) -> None:
    training = client.create_lora_training_client("tiny", rank=4, seed=9, name="openai-moving")
    before = ask(chat, "openai-moving")
    for _ in range(10):
        step(training, [lesson(training, QUESTION, ANSWER)])
    after = ask(chat, "openai-moving")
    ref = training.save_weights_for_sampler().result().ref
    assert before != after == ANSWER == ask(chat, ref)
    training.stop()
    with pytest.raises(openai.APIStatusError):
        ask(chat, "openai-moving")
    assert ask(chat, ref) == after


@pytest.mark.parametrize("model", ["nobody", f"{GROUP}@77", "nobody@1"])
def test_an_unknown_model_is_not_found(chat: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        ask(chat, model)
    assert caught.value.code == "model_not_found"


def test_a_wrong_key_is_refused(service: Service) -> None:
    with (
        openai.OpenAI(
            base_url=f"{service.url}/openai/v1",
            api_key="wrong",
            http_client=openai.DefaultHttpxClient(trust_env=False),
        ) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


@every_name
def test_a_prompt_beyond_the_context_is_refused(chat: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(chat, model, "ship " * 600)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize("model", NAMES[:3])
def test_a_stream_that_is_cut_costs_what_was_sent(
    chat: openai.OpenAI, client: modelyard.ServiceClient, model: str
) -> None:
    before = client.usage().tokens
    stream = chat.chat.completions.create(
        model=model, messages=ASKED, max_completion_tokens=450, seed=1, stream=True
    )
    for _ in range(3):
        next(stream)
    stream.close()
    eventually(lambda: client.usage().tokens["prefill"] > before["prefill"])
    assert 0 < client.usage().tokens["sample"] - before["sample"] < 450


@every_name
def test_answers_end_where_the_model_or_the_caller_says(chat: openai.OpenAI, model: str) -> None:
    """The end token and the stop string are counted, but not shown."""
    create = chat.chat.completions.create
    whole = create(model=model, messages=ASKED, temperature=0)
    assert whole.choices[0].message.content == ANSWER
    assert whole.choices[0].finish_reason == "stop"
    stopped = create(model=model, messages=ASKED, temperature=0, stop=" is")
    assert stopped.choices[0].message.content == "Paris"
    assert stopped.choices[0].finish_reason == "stop"
    assert whole.usage
    assert stopped.usage
    assert 0 < stopped.usage.completion_tokens < whole.usage.completion_tokens


def test_every_path_is_in_the_openapi_page(service: Service) -> None:
    answer = httpx.get(f"{service.url}/openapi.json", trust_env=False)
    paths = answer.json()["paths"]
    assert {"/openai/v1/chat/completions", "/openai/v1/models", "/v1/sessions"} <= paths.keys()
