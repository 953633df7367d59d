"""An open training client keeps its session from being idle, for as long as somebody has it."""

import gc
from collections.abc import Iterator

import pytest

import modelyard as my
from support.fake_service import KEY, MODEL, FakeService, Trouble
from support.training import eventually

BEAT = "POST /v1/sessions/ses_1/heartbeat"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("session.client.heartbeat._EVERY_S", 0.01)


@pytest.fixture
def service(url: str) -> Iterator[my.ServiceClient]:
    with my.ServiceClient(url, KEY, group="facts", timeout=30) as service:
        yield service


def test_a_client_that_does_nothing_says_that_it_lives(
    service: my.ServiceClient, fake: FakeService
) -> None:
    training = service.create_lora_training_client(MODEL)
    eventually(lambda: fake.asked[BEAT] >= 3)
    training.stop()


def test_a_service_that_is_away_for_a_while_hears_it_again(
    service: my.ServiceClient, fake: FakeService
) -> None:
    training = service.create_lora_training_client(MODEL)
    fake.trouble.append(Trouble("/heartbeat", 503, times=3))
    fake.trouble.append(Trouble("/heartbeat", 500, times=3))
    eventually(lambda: all(each.times == 0 for each in fake.trouble))
    seen = fake.asked[BEAT]
    eventually(lambda: fake.asked[BEAT] > seen)
    training.stop()


def over(training: my.TrainingClient) -> bool:
    return training._heartbeat._ended.done()


def test_it_ends_with_the_session_and_with_the_last_reference(
    service: my.ServiceClient, fake: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    training = service.create_lora_training_client(MODEL)
    training.stop()
    eventually(lambda: over(training))
    again = service.create_lora_training_client(MODEL)
    heartbeat = again._heartbeat
    assert not heartbeat._ended.done()
    del again
    gc.collect()
    eventually(heartbeat._ended.done)
    assert caplog.text == ""


def test_a_session_that_ended_meanwhile_is_told_of_once(
    service: my.ServiceClient, fake: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    training = service.create_lora_training_client(MODEL)
    fake.session["status"] = "expired"
    eventually(lambda: over(training))
    assert [record.message for record in caplog.records] == ["session 's-1' is expired: idle"]
    assert training.session_id == "ses_1"


def test_a_service_that_knows_no_heartbeats_is_not_asked_again(
    service: my.ServiceClient, fake: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    fake.trouble.append(Trouble("/heartbeat", 404, times=10**9))
    training = service.create_lora_training_client(MODEL)
    eventually(lambda: over(training))
    assert (fake.asked[BEAT], caplog.text) == (1, "")
    assert training.optim_step().result(30).step == 1


def test_a_session_is_deleted_by_its_name(service: my.ServiceClient, fake: FakeService) -> None:
    service.create_lora_training_client(MODEL, name="first").stop()
    service.delete_session("first")
    assert fake.asked["DELETE /v1/sessions/first"] == 1
