"""`modelyard webhooks` on a running service, whose courier sends what happens there."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import modelyard
from support.receiver import Receiver, receiving
from support.service import Service
from support.service import modelyard as command
from support.training import eventually


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def run(service: Service, *arguments: str) -> Any:
    done = command(service.home, "webhooks", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_save_is_told_to_a_webhook_that_the_command_line_made(
    service: Service, receiver: Receiver, training: modelyard.TrainingClient
) -> None:
    made = run(service, "create", receiver.url, "--type", "version.registered")
    ref = training.save_state().result().ref
    eventually(lambda: bool(receiver.got))
    assert receiver.verified(made["secret"])[0]["data"]["ref"] == ref
    eventually(lambda: bool(run(service, "deliveries", made["id"], "--status", "delivered")))
    (sent,) = run(service, "deliveries", made["id"])
    run(service, "redeliver", made["id"], sent["id"])
    eventually(lambda: len(receiver.got) == 2)
    assert receiver.ids == [sent["event"]] * 2
    assert made["id"] in [each["id"] for each in run(service, "list")]
    assert run(service, "delete", made["id"])["url"] == receiver.url
    assert made["id"] not in [each["id"] for each in run(service, "list")]


def test_a_secret_is_printed_alone_for_a_script_to_take(
    service: Service, receiver: Receiver
) -> None:
    done = command(service.home, "webhooks", "create", receiver.url)
    assert done.stdout.startswith("whsec_")
    assert len(done.stdout.split()) == 1
    webhook = done.stderr.split()[0]
    assert command(service.home, "webhooks", "delete", webhook).returncode == 0


def test_a_webhook_is_shown_changed_tested_and_given_a_new_secret(
    service: Service, receiver: Receiver
) -> None:
    made = run(service, "create", receiver.url, "--type", "alias.moved")
    changed = run(service, "edit", made["id"], "--all-types", "--description", "ours", "--disable")
    assert (changed["url"], changed["types"], changed["enabled"]) == (receiver.url, [], False)
    assert command(service.home, "webhooks", "test", made["id"]).returncode == 4
    run(service, "edit", made["id"], "--enable", "--type", "version.stage")
    shown = run(service, "show", made["id"])
    assert "secret" not in shown
    assert (shown["types"], shown["description"]) == (["version.stage"], "ours")
    secret = command(service.home, "webhooks", "rotate", made["id"]).stdout.strip()
    assert secret.startswith("whsec_")
    assert secret != made["secret"]
    run(service, "test", made["id"])
    eventually(lambda: bool(receiver.got))
    assert receiver.verified(secret)[0]["type"] == "webhook.test"
    run(service, "delete", made["id"])


def test_a_webhook_that_does_not_exist_ends_the_command_with_3(service: Service) -> None:
    done = command(service.home, "webhooks", "delete", "whk_none")
    assert done.returncode == 3
    assert "no webhook with the id 'whk_none'" in done.stderr
