"""The log of a session as any client may drive it: numbers, tokens, retries, order."""

import concurrent.futures
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import modelyard
from session import wire
from support.service import Service
from support.training import batch, eventually, get

Answer = httpx.Response


class Log:
    """One session's operations over plain HTTP."""

    def __init__(self, http: httpx.Client, session: str) -> None:
        self.http = http
        self.session = session

    def post(self, number: int, body: wire.Body, token: str | None = None) -> Answer:
        form = wire.Submission(number, token or f"t{number}", body)
        headers = {"content-type": wire.MEDIA}
        path = f"/v1/sessions/{self.session}/operations"
        return self.http.post(path, content=wire.pack(form), headers=headers)

    def submit(self, number: int, body: wire.Body, token: str | None = None) -> dict[str, Any]:
        answer = self.post(number, body, token)
        assert answer.status_code == 202, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def ended(self, operation: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {"status": "pending"}
        while found["status"] in ("pending", "running"):
            found = self.http.get(f"/v1/operations/{operation['id']}?wait=20").json()
        return found

    def do(self, number: int, body: wire.Body) -> dict[str, Any]:
        return self.ended(self.submit(number, body))


@pytest.fixture
def log(service: Service, training: modelyard.TrainingClient) -> Iterator[Log]:
    headers = {"Authorization": f"Bearer {service.api_key}"}
    with httpx.Client(base_url=service.url, headers=headers, trust_env=False, timeout=60) as http:
        yield Log(http, training.session_id)


def forward_backward(seed: int = 0, lengths: tuple[int, ...] = (7, 30)) -> wire.ForwardBackward:
    data = [
        wire.Datum(
            each.model_input.to_wire("tokens"),
            {key: wire.Tensor.of(value.to_numpy()) for key, value in each.loss_fn_inputs.items()},
        )
        for each in batch(seed, lengths)
    ]
    return wire.ForwardBackward(data)


STEP = wire.OptimStep(learning_rate=1e-2)
CLEAR = wire.ClearGradient()


def problem(answer: Answer, status: int) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return str(answer.json()["detail"])


def test_the_same_call_again_is_the_same_operation(log: Log) -> None:
    first = log.submit(1, CLEAR, "a")
    assert log.submit(1, CLEAR, "a")["id"] == first["id"]
    assert log.submit(1, CLEAR, "another token, the same body")["id"] == first["id"]
    assert log.ended(first)["status"] == "completed"
    assert log.submit(1, CLEAR, "a")["status"] == "completed"


def test_another_call_with_a_taken_number_is_a_conflict_that_names_both(log: Log) -> None:
    first = log.submit(1, CLEAR, "a")
    said = problem(log.post(1, STEP, "b"), 409)
    assert "number 1" in said
    assert first["id"] in said
    hashes = [word for word in said.replace(";", " ").split() if len(word) == 12]
    assert len(set(hashes)) == 2


def test_numbers_that_come_early_wait_and_run_in_order(log: Log) -> None:
    late = [log.submit(4, STEP), log.submit(2, STEP), log.submit(3, forward_backward(1))]
    assert [log.http.get(f"/v1/operations/{o['id']}").json()["status"] for o in late] == [
        "pending"
    ] * 3
    log.submit(1, forward_backward(0))
    ended = [log.ended(operation) for operation in late]
    assert [operation["status"] for operation in ended] == ["completed"] * 3
    assert [operation["result"]["metrics"].get("step") for operation in ended] == [2, 1, None]


def test_many_submissions_at_once_make_one_operation(service: Service, log: Log) -> None:
    body = forward_backward()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: log.submit(1, body, "same"), range(16)))
    assert len({answer["id"] for answer in answers}) == 1
    assert log.ended(answers[0])["result"]["tokens"] == 37
    assert get(service, f"/v1/sessions/{log.session}")["last_number"] == 1
    used = get(service, "/v1/usage/totals", session=log.session)["tokens"]
    assert used["train"] == 37


def test_of_two_bodies_for_one_number_one_wins_whatever_the_race(log: Log) -> None:
    bodies = [
        wire.OptimStep(learning_rate=rate) for rate in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    ]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda i: log.post(1, bodies[i], f"t{i}"), range(8)))
    assert sorted(answer.status_code for answer in answers) == [202, *[409] * 7]


def test_numbers_from_many_threads_run_once_each_and_in_order(log: Log) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        bodies = {n: STEP if n % 2 == 0 else forward_backward(n) for n in range(1, 13)}
        order = [7, 12, 1, 4, 9, 2, 11, 3, 10, 6, 5, 8]
        accepted = dict(
            zip(order, pool.map(lambda n: log.submit(n, bodies[n]), order), strict=True)
        )
    steps = [log.ended(accepted[n])["result"]["metrics"]["step"] for n in range(2, 13, 2)]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_an_invalid_operation_fails_and_the_next_one_runs(log: Log) -> None:
    failed = log.do(1, wire.ForwardBackward([]))
    assert (failed["status"], failed["error"]["kind"]) == ("failed", "invalid")
    poisoned = log.do(2, STEP)
    assert "forward_backward since the last step failed" in poisoned["error"]["message"]
    assert log.do(3, forward_backward())["status"] == "completed"
    assert log.do(4, STEP)["result"]["metrics"]["step"] == 1


def test_what_cannot_be_decoded_fails_by_datum_and_key_and_poisons_the_step(log: Log) -> None:
    good = wire.Tensor.of(np.array([5, 6, 7]))
    for number, (bad, reason) in enumerate(
        (
            (wire.Tensor("int64", b"\1\2\3"), "3 bytes"),
            (wire.Tensor("int64", [1.5, 2.0, 3.0]), "not whole"),
            (wire.Tensor("float32", [1.0, 2.0, 3.0], (7,)), "shape [7]"),
        ),
        1,
    ):
        data = [wire.Datum(good, {"target_tokens": good}), wire.Datum(good, {"target_tokens": bad})]
        error = log.do(number, wire.ForwardBackward(data))["error"]
        assert error["message"].startswith("datum 1: target_tokens: "), error
        assert reason in error["message"]
    log.do(4, forward_backward())
    assert log.do(5, STEP)["status"] == "failed"


def test_a_body_over_64_kib_lies_in_the_object_store(service: Service, log: Log) -> None:
    bodies = f"objects/*/sessions/{log.session}/bodies/*"
    assert log.do(1, forward_backward(0, (300,)))["status"] == "completed"
    assert not list(service.home.glob(bodies))
    large = forward_backward(0, (500,) * 12)
    assert log.do(2, large)["status"] == "completed"
    assert [path.stat().st_size > 64 * 1024 for path in service.home.glob(bodies)] == [True]
    assert log.submit(2, large)["status"] == "completed"
    assert len(list(service.home.glob(bodies))) == 1


def test_results_are_read_after_the_end_and_nothing_more_is_taken(
    service: Service, log: Log, training: modelyard.TrainingClient
) -> None:
    done = log.submit(1, forward_backward())
    log.submit(3, STEP)  # its turn never comes
    log.http.post(f"/v1/sessions/{log.session}/stop")
    eventually(lambda: get(service, f"/v1/sessions/{log.session}")["status"] == "stopped")
    assert log.ended(done)["result"]["tokens"] == 37
    assert "stopped" in problem(log.post(4, STEP), 409)
    parked = log.submit(3, STEP)
    assert (parked["status"], parked["error"]["message"]) == ("skipped", "the session is stopped")


def test_plain_json_trains_like_the_binary_form(log: Log) -> None:
    tokens = {"dtype": "int64", "data": [5, 6, 7]}
    weights = {"dtype": "float32", "data": [1, 0.5, 0]}
    datum = {"tokens": tokens, "inputs": {"target_tokens": tokens, "weights": weights}}
    body = {"type": "forward", "data": [datum]}
    accepted = log.http.post(
        f"/v1/sessions/{log.session}/operations", json={"number": 1, "token": "j", "body": body}
    ).json()
    plain = log.ended(accepted)["result"]
    packed = wire.Datum(
        wire.Tensor.of(np.array([5, 6, 7])),
        {
            "target_tokens": wire.Tensor.of(np.array([5, 6, 7])),
            "weights": wire.Tensor.of(np.array([1, 0.5, 0], np.float32)),
        },
    )
    assert log.do(2, wire.Forward([packed]))["result"] == plain


def test_a_save_of_what_no_version_may_carry_fails_by_field(log: Log, tmp_path: Path) -> None:
    saves = [
        (wire.Save("adapter", description="d" * 1025), "description"),
        (wire.Save("adapter", description="\0"), "description"),
        (wire.Save("adapter", metadata={"k": "v" * 1025}), "metadata.k"),
        (wire.Save("adapter", metadata={"": "v"}), "metadata"),
        (wire.Save("adapter", metrics={"m": float("inf")}), "metrics.m"),
        (wire.Save("adapter", group="nowhere"), "'nowhere'"),
        (wire.Save("adapter", group="../up\0"), "no group"),
    ]
    for number, (save, named) in enumerate(saves, 1):
        assert named in log.do(number, save)["error"]["message"]
    saved = log.do(len(saves) + 1, wire.Save("adapter", description="naïve 🦊"))
    assert saved["result"]["version"].endswith("@1")
