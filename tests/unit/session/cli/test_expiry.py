from datetime import UTC, datetime, timedelta

import pytest
import typer

from session.cli.expiry import parse_expiry

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12h", NOON + timedelta(hours=12)),
        ("30d", NOON + timedelta(days=30)),
        ("4w", NOON + timedelta(weeks=4)),
        ("2030-01-31", datetime(2030, 1, 31, tzinfo=UTC)),
        ("2030-01-31T12:00:00+02:00", datetime(2030, 1, 31, 10, tzinfo=UTC)),
    ],
)
def test_a_span_or_a_moment_is_understood(text: str, expected: datetime) -> None:
    assert parse_expiry(text, at=NOON) == expected


@pytest.mark.parametrize("text", ["", "0d", "-1d", "1.5d", "30", "soon", "2029-12-31", "9999999d"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_expiry(text, at=NOON)
