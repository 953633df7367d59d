"""The table of states, walked whole."""

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from session.lifecycle.errors import SessionEnded, SessionNotEnded, TransitionRefused
from session.lifecycle.model import LIVE, STORED, TRANSITIONS, Status, TrainingSession

ALLOWED = {
    ("created", "running"),
    ("created", "stopping"),
    ("created", "expired"),
    ("created", "failed"),
    ("running", "blocked"),
    ("running", "stopping"),
    ("running", "expired"),
    ("running", "failed"),
    ("blocked", "running"),
    ("blocked", "stopping"),
    ("blocked", "expired"),
    ("blocked", "failed"),
    ("stopping", "stopped"),
    ("stopping", "expired"),
    ("stopping", "failed"),
}
ENDED = {"stopped", "expired", "failed"}
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def session(status: Status, **more: object) -> TrainingSession:
    return TrainingSession(id="ses_1", name="s", status=status, **more)


def test_the_table_has_every_state_and_these_transitions() -> None:
    assert set(TRANSITIONS) == set(Status)
    found = {(str(a), str(b)) for a, following in TRANSITIONS.items() for b in following}
    assert found == ALLOWED


@pytest.mark.parametrize(("first", "second"), list(product(STORED, Status)))
def test_each_transition_is_made_or_refused_as_the_table_says(
    first: Status, second: Status
) -> None:
    found = session(first)
    if (first, second) in ALLOWED and second != Status.blocked:
        found.move(second, error="why")
        assert (found.status, found.error) == (second, "why")
        assert (found.ended_at is not None) == (second in ENDED)
        return
    with pytest.raises(TransitionRefused, match=f"'s' is {first} and cannot become {second}"):
        found.move(second)
    assert (found.status, found.ended_at) == (first, None)


def test_blocked_is_what_a_running_session_is_while_a_number_is_missing() -> None:
    """So no transition into it or out of it is made by a row, and the table must not tell them
    apart otherwise."""
    for status in STORED:
        assert session(status).shown(missing=None) == status
        expected = Status.blocked if status == Status.running else status
        assert session(status).shown(missing=5) == expected
    following = TRANSITIONS[Status.blocked] - {Status.running}
    assert following == TRANSITIONS[Status.running] - {Status.blocked}


def test_only_what_is_created_or_running_takes_work_and_only_what_has_ended_is_deleted() -> None:
    for status in STORED:
        found = session(status, error="because")
        if status not in (Status.created, Status.running):
            with pytest.raises(SessionEnded, match=f"'s' is {status}: because"):
                found.require_open()
        else:
            found.require_open()
        if status in LIVE:
            found.require_live()
            with pytest.raises(SessionNotEnded, match=f"'s' is {status}"):
                found.require_ended()
        else:
            found.require_ended()
            with pytest.raises(SessionEnded):
                found.require_live()
    assert set(LIVE) == set(STORED) - ENDED


@pytest.mark.parametrize(
    ("status", "epochs", "silent_s", "expected"),
    [
        ("created", (1, 0), 5, "live"),
        ("created", (0, 0), None, "away"),
        ("running", (2, 2), 5, "live"),
        ("running", (2, 2), 16, "away"),
        ("running", (3, 2), 5, "restoring"),
        ("stopping", (3, 2), 5, "restoring"),
        ("running", (2, 2), None, "away"),
        ("expired", (2, 2), 5, None),
    ],
)
def test_the_worker_is_told_by_its_heartbeat(
    status: str, epochs: tuple[int, int], silent_s: int | None, expected: str | None
) -> None:
    begun = {"next_number": 0 if status == "created" else 1, "worker_id": "w"}
    found = session(Status(status), lease_epoch=epochs[0], live_epoch=epochs[1], **begun)
    beat_at = None if silent_s is None else NOW - timedelta(seconds=silent_s)
    assert found.worker(beat_at, at=NOW) == expected
