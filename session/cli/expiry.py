"""When something ends, as people write it: `30d`, `12h`, `4w`, or a moment such as 2030-01-31."""

import re
from datetime import UTC, datetime, timedelta

import typer

_SPAN = re.compile(r"(?P<count>[1-9][0-9]{0,4})(?P<unit>[hdw])")
_UNITS = {"h": "hours", "d": "days", "w": "weeks"}


def parse_expiry(text: str, *, at: datetime) -> datetime:
    """A moment without a zone is in UTC."""
    span = _SPAN.fullmatch(text)
    if span is not None:
        return at + timedelta(**{_UNITS[span["unit"]]: int(span["count"])})
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither a span such as 30d, 12h or 4w nor a moment such as 2030-01-31"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if moment <= at:
        raise typer.BadParameter(f"{text} is in the past")
    return moment


def parse_age(text: str) -> timedelta:
    """Zero is an age too."""
    span = _SPAN.fullmatch(text)
    if span is not None:
        return timedelta(**{_UNITS[span["unit"]]: int(span["count"])})
    if text in ("0", "0h", "0d", "0w"):
        return timedelta()
    raise typer.BadParameter(f"{text!r} is not an age such as 24h, 7d or 0h")


def parse_moment(text: str) -> datetime:
    """One without a zone is in UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a moment such as 2030-01-31 or 2030-01-31T12:00+01:00"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def now() -> datetime:
    return datetime.now(UTC)
