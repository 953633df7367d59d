"""What the commands take is what the service has."""

from enum import StrEnum

import pytest

from registry.events.model import DeliveryStatus, EventType
from registry.packages.model import Approval, PackageKind, Stage
from session.cli import choices
from session.lifecycle.model import Status


@pytest.mark.parametrize(
    ("ours", "the_service_s"),
    [
        (choices.Kind, PackageKind),
        (choices.Stage, Stage),
        (choices.Approval, Approval),
        (choices.SessionStatus, Status),
        (choices.DeliveryStatus, DeliveryStatus),
    ],
)
def test_an_option_takes_what_the_service_takes(
    ours: type[StrEnum], the_service_s: type[StrEnum]
) -> None:
    assert [*map(str, ours)] == [*map(str, the_service_s)]


def test_a_webhook_may_ask_for_every_type_but_the_test() -> None:
    assert {*map(str, choices.EventType)} == {*map(str, EventType)} - {"webhook.test"}
