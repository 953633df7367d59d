from datetime import UTC, datetime, timedelta

import pytest

from session.endings.lifetimes import Lifetimes, spoken
from session.lifecycle.model import Status, TrainingSession

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
LIFETIMES = Lifetimes(gap=HOUR, idle=4 * HOUR, age=2 * DAY, results=DAY)
NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (1, "1 second"),
        (90, "90 seconds"),
        (600, "10 minutes"),
        (5400, "90 minutes"),
        (14400, "4 hours"),
        (86400, "1 day"),
        (2592000, "30 days"),
    ],
)
def test_a_span_is_spoken_in_the_largest_unit_that_it_is_whole_in(seconds: int, said: str) -> None:
    assert spoken(timedelta(seconds=seconds)) == said


def test_a_session_expires_by_idleness_or_by_age_whichever_comes_first() -> None:
    found = TrainingSession(status=Status.running, created_at=NOW, last_active_at=NOW)
    assert LIFETIMES.expiry(found) == NOW + 4 * HOUR
    found.last_active_at = NOW + 47 * HOUR
    assert LIFETIMES.expiry(found) == NOW + 48 * HOUR
    found.move(Status.expired)
    assert LIFETIMES.expiry(found) is None
