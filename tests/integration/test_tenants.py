"""Two accounts on one service: what is another's answers exactly as what does not exist.

Every route is walked by its path in test_permissions.py; here is what bodies, queries and our own
client name.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

import modelyard
from modelyard import NotFoundError, OperationFailed, SamplingParams
from support.service import Service
from support.service import modelyard as command
from support.training import batch, connect, get, prompt, step

GROUP = "alices-group"


@dataclass(frozen=True)
class Tenants:
    """Alice has one of everything; Bob has nothing but a token."""

    service: Service
    alice: str
    bob: str
    things: dict[str, str]


@pytest.fixture(scope="module")
def tenants(service: Service) -> Iterator[Tenants]:
    keys = {name: new_key(service, name) for name in ("alice", "bob")}
    with connect(service, GROUP, api_key=keys["alice"]) as client:
        training = client.create_lora_training_client("tiny", rank=4, name="alices-session")
        step(training, batch(1))
        ref = training.save_state(description="alice's own").result()
        merged = client.merge(ref.ref).result(60)
        client.promote(merged.ref, "alices-model").result(120)
        client.set_alias("prod", ref.ref)
        sampler = training.save_weights_and_get_sampling_client()
        sampler.sample(prompt([5]), SamplingParams(max_tokens=2)).result()
        things = {
            "session": training.session_id,
            "weights": asked_weights(training),
        }
        yield Tenants(service, keys["alice"], keys["bob"], things)
        training.stop()


def new_key(service: Service, account: str) -> str:
    assert command(service.home, "accounts", "create", account).returncode == 0
    done = command(service.home, "tokens", "create", "--account", account, "--name", "t")
    return done.stdout.split()[-1]


def asked_weights(training: modelyard.TrainingClient) -> str:
    """The id that the client keeps to itself."""
    source = training.save_weights_and_get_sampling_client()._source
    assert isinstance(source, modelyard.APIFuture)
    return str(source.result().weights)


def ask(tenants: Tenants, key: str, method: str, path: str, body: Any = None) -> httpx.Response:
    return httpx.request(
        method,
        tenants.service.url + path,
        json=body,
        headers={"Authorization": f"Bearer {key}", "If-Match": '"1"'},
        trust_env=False,
        timeout=60,
    )


def test_lists_and_totals_hold_nothing_of_anothers(tenants: Tenants) -> None:
    for path in ("sessions", "groups", "deployments"):
        assert get(tenants.service, f"/v1/{path}", api_key=tenants.bob)["data"] == []
    totals = get(tenants.service, "/v1/usage/totals", api_key=tenants.bob)
    assert (sum(totals["tokens"].values()), totals["sessions"]) == (0, [])
    session = tenants.things["session"]
    one = get(tenants.service, "/v1/usage/totals", api_key=tenants.bob, session=session)
    assert sum(one["tokens"].values()) == 0
    usage = get(tenants.service, "/v1/usage", api_key=tenants.bob, session=session)
    assert all(bucket["results"] == [] for bucket in usage["data"])
    models = get(tenants.service, "/openai/v1/models", api_key=tenants.bob)
    assert models["data"] == []
    assert [row["name"] for row in get(tenants.service, "/v1/models", api_key=tenants.bob)["data"]]


def test_nothing_of_anothers_can_be_sampled(tenants: Tenants) -> None:
    things = tenants.things
    sources: list[tuple[dict[str, str], dict[str, str]]] = [
        ({"session": things["session"]}, {"session": "ses_" + "0" * 26}),
        ({"session": "alices-session"}, {"session": "nobodys-session"}),
        ({"source": f"{GROUP}@1"}, {"source": "nobodys-group@1"}),
        ({"source": f"{GROUP}:prod"}, {"source": "nobodys-group:prod"}),
        ({"weights": things["weights"]}, {"weights": "wgt_" + "0" * 26}),
    ]
    prompt = {"dtype": "int64", "data": [5, 6]}
    for number, (hers, none) in enumerate(sources):
        answers = [
            ask(
                tenants,
                tenants.bob,
                "POST",
                "/v1/samples",
                {**source, "prompt": prompt, "max_tokens": 1, "token": f"t{number}{index}"},
            )
            for index, source in enumerate((hers, none))
        ]
        assert [answer.status_code for answer in answers] == [404, 404]
        assert {answer.json()["title"] for answer in answers} == {answers[0].json()["title"]}
        mine = {**hers, "prompt": prompt, "max_tokens": 1, "token": f"t{number}"}
        assert ask(tenants, tenants.alice, "POST", "/v1/samples", mine).status_code == 200


def test_nothing_of_anothers_answers_on_the_openai_wire(tenants: Tenants) -> None:
    messages = [{"role": "user", "content": "hello"}]
    for hers, none in (
        ("alices-model", "nobodys-model"),
        ("alices-session", "nobodys-session"),
        (f"{GROUP}@1", "nobodys-group@1"),
        (f"{GROUP}:prod", "nobodys-group:prod"),
    ):
        bodies = [{"model": model, "messages": messages, "max_tokens": 2} for model in (hers, none)]
        answers = [
            ask(tenants, tenants.bob, "POST", "/openai/v1/chat/completions", body)
            for body in bodies
        ]
        assert [answer.status_code for answer in answers] == [404, 404]
        errors = [answer.json()["error"] for answer in answers]
        assert errors[0] == {**errors[1], "message": errors[0]["message"]}
        fine = ask(tenants, tenants.alice, "POST", "/openai/v1/chat/completions", bodies[0])
        assert fine.status_code == 200, fine.text


def test_nothing_of_anothers_can_be_resumed_loaded_or_promoted(tenants: Tenants) -> None:
    with connect(tenants.service, "bobs-group", api_key=tenants.bob) as client:
        for call in (
            lambda: client.create_training_client_from_state(f"{GROUP}@1"),
            lambda: client.create_training_client_from_state(f"{GROUP}:prod"),
            lambda: client.promote(f"{GROUP}@2", "bobs-model").result(),
            lambda: client.merge(f"{GROUP}@1").result(),
        ):
            with pytest.raises(NotFoundError, match=GROUP):
                call()
        training = client.create_lora_training_client("tiny", rank=4)
        with pytest.raises(OperationFailed, match="no group"):
            training.load_state(f"{GROUP}@1").result()
        with pytest.raises(OperationFailed, match="no group"):
            training.save_state(group=GROUP).result()
        training.stop()


def test_both_may_use_one_name_each_for_their_own(tenants: Tenants) -> None:
    with connect(tenants.service, GROUP, api_key=tenants.bob) as client:
        training = client.create_lora_training_client("tiny", rank=4, name="alices-session")
        assert training.save_state().result().ref == f"{GROUP}@1"
        assert client.get_version(f"{GROUP}@1").description == ""
        training.stop()
    found = get(tenants.service, f"/v1/groups/{GROUP}/versions/1", api_key=tenants.alice)
    assert found["description"] == "alice's own"


def test_one_sampling_token_in_two_accounts_is_two_requests(tenants: Tenants) -> None:
    body = {"model": "tiny", "prompt": {"dtype": "int64", "data": [5]}, "token": "shared"}
    hers = ask(tenants, tenants.alice, "POST", "/v1/samples", {**body, "max_tokens": 1})
    his = ask(tenants, tenants.bob, "POST", "/v1/samples", {**body, "max_tokens": 2})
    assert (hers.status_code, his.status_code) == (200, 200)
    assert hers.json()["id"] != his.json()["id"]


def test_what_another_account_has_sampled_is_not_cached_for_one(tenants: Tenants) -> None:
    """By the count of cached tokens, one could try what another has sent."""
    tokens = [7, 8, 9] * 40
    body = {"model": "tiny", "prompt": {"dtype": "int64", "data": tokens}, "max_tokens": 1}
    cached = [
        ask(tenants, key, "POST", "/v1/samples", {**body, "token": f"cached-{number}"}).json()
        for number, key in enumerate((tenants.alice, tenants.bob, tenants.alice))
    ]
    assert [each["cached_tokens"] for each in cached] == [0, 0, len(tokens)]


def test_weights_are_named_by_no_id_of_the_engine(tenants: Tenants) -> None:
    """The worker holds a session under its id, and a version under one that the registry made."""
    one = get(tenants.service, f"/v1/groups/{GROUP}/versions/1", api_key=tenants.alice)
    prompt = {"dtype": "int64", "data": [5]}
    for place in ("weights", "session", "source", "model"):
        for hers in (one["id"], tenants.things["session"], tenants.things["weights"]):
            body = {place: hers, "prompt": prompt, "max_tokens": 1, "token": f"{place}-{hers}"}
            answer = ask(tenants, tenants.bob, "POST", "/v1/samples", body)
            none = hers[:4] + "0" * 26
            nothing = ask(tenants, tenants.bob, "POST", "/v1/samples", {**body, place: none})
            assert answer.is_client_error
            assert answer.text.replace(hers, none) == nothing.text
