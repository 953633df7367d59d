"""Exact counts of tokens, as DESIGN section 7 says what counts."""

import json
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import httpx
import numpy as np
import openai
import pytest

import modelyard
from session import wire
from support.service import Service
from support.service import modelyard as command
from support.training import (
    QUESTION,
    batch,
    chat_client,
    connect,
    datum,
    eventually,
    get,
    prompt,
    step,
)

TOKENS = [5, 17, 200, 33, 9]
BATCH = 7 + 30 + 2 + 16
CATEGORIES = ("train", "prefill", "cached_prefill", "sample")
Spent = Callable[[], dict[str, int]]


@pytest.fixture(scope="module")
def api_key(service: Service) -> str:
    """Of an account that only these tests use."""
    command(service.home, "accounts", "create", "metered")
    made = command(
        service.home, "tokens", "create", "--account", "metered", "--name", "t", "--json"
    )
    return str(json.loads(made.stdout)["secret"])


@pytest.fixture
def client(service: Service, api_key: str, group: str) -> Iterator[modelyard.ServiceClient]:
    with connect(service, group, api_key=api_key) as client:
        yield client


@pytest.fixture
def chat(service: Service, api_key: str) -> Iterator[openai.OpenAI]:
    with chat_client(service, api_key=api_key) as chat:
        yield chat


@pytest.fixture
def spent(client: modelyard.ServiceClient, training: modelyard.TrainingClient) -> Spent:
    """What the account has spent since this was made, without what it spent nothing on."""
    before = client.usage().tokens

    def since() -> dict[str, int]:
        now = client.usage().tokens
        return {kind: now[kind] - before[kind] for kind in CATEGORIES if now[kind] > before[kind]}

    return since


def test_training_counts_all_input_tokens(training: modelyard.TrainingClient, spent: Spent) -> None:
    training.forward(batch()).result()
    assert spent() == {"train": BATCH}
    training.forward_backward(batch()).result()
    assert spent() == {"train": 2 * BATCH}


def test_tokens_of_no_weight_count_too(training: modelyard.TrainingClient, spent: Spent) -> None:
    training.forward_backward([datum(TOKENS, [0.0, 0.0, 0.0, 1.0])]).result()
    assert spent() == {"train": 4}


def test_a_custom_loss_counts_both_of_its_passes(
    training: modelyard.TrainingClient, spent: Spent
) -> None:
    training.forward_backward_custom(batch(), lambda _, found: (-found[0].sum(), {})).result()
    assert spent() == {"train": 2 * BATCH}


def test_steps_saves_and_loads_cost_nothing(
    client: modelyard.ServiceClient, training: modelyard.TrainingClient, spent: Spent
) -> None:
    step(training, batch())
    saved = training.save_state().result()
    training.save_merged().result()
    training.save_weights_and_get_sampling_client()
    training.load_state_with_optimizer(saved.ref).result()
    client.create_training_client_from_state(saved.ref).stop()
    client.merge(saved.ref).result()
    assert spent() == {"train": BATCH}


def test_a_prompt_counts_once_whatever_the_number_of_samples(
    client: modelyard.ServiceClient, training: modelyard.TrainingClient, spent: Spent
) -> None:
    sampler = client.create_sampling_client(session=training.session_id)
    params = modelyard.SamplingParams(max_tokens=6, stop=[])
    sampler.sample(prompt(TOKENS), params, num_samples=3).result()
    assert spent() == {"prefill": 5, "sample": 18}


def test_the_stop_token_counts(
    client: modelyard.ServiceClient, training: modelyard.TrainingClient, spent: Spent
) -> None:
    sampler = client.create_sampling_client(session=training.session_id)
    free = modelyard.SamplingParams(max_tokens=6, temperature=0, stop=[])
    (sample,) = sampler.sample(prompt(TOKENS), free).result().sequences
    stop = sample.tokens[3]
    place = sample.tokens.index(stop) + 1
    stopped = modelyard.SamplingParams(max_tokens=6, temperature=0, stop=[stop])
    (sample,) = sampler.sample(prompt(TOKENS), stopped).result().sequences
    assert (sample.tokens[-1], len(sample.tokens), sample.stop_reason) == (stop, place, "stop")
    again = 1  # the second time, the prompt's last token is computed anew
    assert spent() == {"prefill": 5 + again, "cached_prefill": 4, "sample": 6 + place}


def test_scoring_counts_the_prompt(
    client: modelyard.ServiceClient, training: modelyard.TrainingClient, spent: Spent
) -> None:
    ref = training.save_weights_for_sampler().result().ref
    samplers = [
        client.create_sampling_client(base_model="tiny"),
        client.create_sampling_client(version=ref),
        training.save_weights_and_get_sampling_client(),
    ]
    for sampler in samplers:
        sampler.compute_logprobs(prompt(TOKENS)).result()
    assert spent() == {"prefill": 15}


def test_what_fails_costs_nothing(
    client: modelyard.ServiceClient, training: modelyard.TrainingClient, spent: Spent
) -> None:
    outside = [datum([5, 6, 9999])]
    for call in (training.forward(outside), training.forward_backward(outside)):
        with pytest.raises(modelyard.OperationFailed):
            call.result()
    sampler = client.create_sampling_client(session=training.session_id)
    for tokens in ([9999], [5] * 1000):
        with pytest.raises(modelyard.ModelyardError):
            sampler.sample(prompt(tokens)).result()
    assert spent() == {}


def test_an_idle_session_and_local_work_cost_nothing(
    client: modelyard.ServiceClient, training: modelyard.TrainingClient, spent: Spent
) -> None:
    training.log({"reward": 1.0}).result()
    training.get_tokenizer()
    training.metrics(), training.get_info(), client.list_versions(), client.list_base_models()
    time.sleep(1.5)
    assert spent() == {}


def ledger(service: Service, query: str, *parameters: str) -> list[tuple[Any, ...]]:
    """What stands in the tables themselves."""
    with closing(sqlite3.connect(f"file:{service.home}/modelyard.db?mode=ro", uri=True)) as db:
        return db.execute(query, parameters).fetchall()


def post(service: Service, api_key: str, path: str, body: bytes) -> httpx.Response:
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": wire.MEDIA}
    return httpx.post(
        service.url + path, content=body, headers=headers, trust_env=False, timeout=60
    )


def test_a_request_sent_twice_is_counted_once(
    service: Service, api_key: str, training: modelyard.TrainingClient, spent: Spent
) -> None:
    tokens = wire.Tensor.of(np.array(TOKENS))
    form = wire.Sampling(tokens, uuid.uuid4().hex, 4, session=training.session_id, stop=[])
    one, again = (post(service, api_key, "/v1/samples", wire.pack(form)) for _ in range(2))
    assert one.status_code == 200
    assert one.json() == again.json()
    body = wire.Forward([wire.Datum(tokens, {"target_tokens": tokens})])
    call = wire.pack(wire.Submission(1, "once", body))
    path = f"/v1/sessions/{training.session_id}/operations"
    one, again = (post(service, api_key, path, call) for _ in range(2))
    assert (one.status_code, one.json()["id"]) == (202, again.json()["id"])
    eventually(lambda: "train" in spent())
    assert spent() == {"prefill": 5, "sample": 4, "train": 5}


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_costs_what_its_answer_says(
    service: Service,
    chat: openai.OpenAI,
    client: modelyard.ServiceClient,
    training: modelyard.TrainingClient,
    spent: Spent,
    stream: bool,
) -> None:
    ref = training.save_merged().result().ref
    client.promote(ref, "metered-live").result()
    said = {"prefill": 0, "sample": 0}
    for model in ("metered-live", training.name or "", ref):
        usage = chat_usage(chat, model, stream=stream)
        said["prefill"] += usage.prompt_tokens
        said["sample"] += usage.completion_tokens
    assert said["sample"] == 3 * 2 * 7
    eventually(lambda: spent() == said)
    query = "SELECT status FROM sampling_requests WHERE session_id = ?"
    assert ledger(service, query, training.session_id) == [("completed",), ("completed",)]


def chat_usage(chat: openai.OpenAI, model: str, *, stream: bool) -> Any:
    """Of two answers of seven tokens."""
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    create: Any = chat.chat.completions.create
    asked = create(
        model=model,
        messages=[{"role": "user", "content": QUESTION}],
        max_completion_tokens=7,
        temperature=0,
        n=2,
        **options,
    )
    return list(asked)[-1].usage if stream else asked.usage


def test_totals_stand_by_session_and_by_account(
    service: Service,
    api_key: str,
    client: modelyard.ServiceClient,
    training: modelyard.TrainingClient,
    spent: Spent,
) -> None:
    other = client.create_lora_training_client("tiny", rank=4, seed=8)
    training.forward(batch()).result()
    other.forward([datum(TOKENS)]).result()
    client.create_sampling_client(session=other.session_id).compute_logprobs(
        prompt(TOKENS)
    ).result()
    client.create_sampling_client(base_model="tiny").compute_logprobs(prompt(TOKENS)).result()
    assert client.usage(training.session_id).tokens == {
        "train": BATCH,
        "prefill": 0,
        "cached_prefill": 0,
        "sample": 0,
    }
    assert client.usage(other.session_id).tokens["prefill"] == 5
    totals = get(service, "/v1/usage/totals", api_key=api_key)
    by_session = {row["session"]: row["tokens"] for row in totals["sessions"]}
    assert by_session[other.session_id]["train"] == 4
    assert totals["tokens"] == client.usage().tokens
    assert spent() == {"train": BATCH + 4, "prefill": 10}
    with connect(service) as stranger:
        assert by_session.keys().isdisjoint(row.session for row in stranger.usage().sessions)
    other.stop()


def test_the_ledger_holds_each_fact_once(
    service: Service, training: modelyard.TrainingClient, spent: Spent
) -> None:
    step(training, batch())
    facts = "count(*), count(DISTINCT account_id || operation_id || category)"
    ((rows, different),) = ledger(service, f"SELECT {facts} FROM usage_events")
    assert rows == different
    mine = "SELECT category, tokens FROM usage_events WHERE session_id = ?"
    assert ledger(service, mine, training.session_id) == [("train", BATCH)]
