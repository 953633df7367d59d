"""An answer that a network cuts off is asked for again, and what was asked is done once."""

from collections.abc import Iterator
from contextlib import contextmanager

import modelyard
from support.faulty import Once, Proxied, proxy
from support.service import Service
from support.service import modelyard as command
from support.training import get


@contextmanager
def losing(service: Service, method: str, path: str) -> Iterator[str]:
    """A way to the service on which the first answer to that is lost, after the work is done."""

    def cut(request: Proxied) -> None:
        request.passed_on()
        request.hang_up()

    def fits(request: Proxied) -> bool:
        return request.command == method and request.path == path

    fault = Once(fits, cut)
    with proxy(service.url, fault) as url:
        yield url
    assert fault.left == 0


def test_a_session_whose_answer_is_lost_is_opened_once(service: Service, group: str) -> None:
    with (
        losing(service, "POST", "/v1/sessions") as url,
        modelyard.ServiceClient(url, service.api_key, group=group) as client,
    ):
        training = client.create_lora_training_client("tiny", rank=4)
        mine = [each.id for each in client.list_sessions() if each.group == group]
        assert mine == [training.session_id]
        training.stop()


def test_a_move_whose_answer_is_lost_is_made_once(
    service: Service, training: modelyard.TrainingClient, group: str
) -> None:
    ref = training.save_state().result().ref
    alias, approval = f"/v1/groups/{group}/aliases/prod", f"/v1/groups/{group}/versions/1/approval"
    with (
        losing(service, "PUT", alias) as url,
        modelyard.ServiceClient(url, service.api_key, group=group) as client,
    ):
        assert client.set_alias("prod", ref).revision == 1
    with losing(service, "PUT", approval) as url:
        settings = {"MODELYARD_URL": url, "MODELYARD_API_KEY": service.api_key}
        done = command(service.home, "approve", ref, settings=settings)
        assert done.returncode == 0, done.stderr
    moves = get(service, f"/v1/groups/{group}/history")["data"]
    assert [(move["kind"], move["to"]) for move in moves] == [
        ("approval", "approved"),
        ("alias", ref),
    ]
