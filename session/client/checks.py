"""Arguments of a wrong type, refused by name before anything is sent."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, TypeVar

from session.client.errors import InvalidInput

T = TypeVar("T")


def of_type(name: str, value: object, form: type[T], advice: str) -> T:
    if not isinstance(value, form):
        raise _wrong(name, value, advice)
    return value


def text(name: str, value: object) -> str:
    return of_type(name, value, str, "a string")


def optional_text(name: str, value: object) -> str | None:
    return None if value is None else text(name, value)


def whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise _wrong(name, value, "a whole number")
    return int(value)


def number(name: str, value: Any) -> float:
    """Also numpy's numbers, and a tensor of one."""
    if isinstance(value, str | bytes | bool):
        raise _wrong(name, value, "a number")
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise _wrong(name, value, "a number") from None


def numbers(name: str, value: Mapping[str, float] | None) -> dict[str, float]:
    """Plain floats: numpy's own do not travel."""
    return {key: number(f"{name}[{key!r}]", each) for key, each in mapping(name, value).items()}


def texts(name: str, value: Mapping[str, Any] | None) -> dict[str, str]:
    return {key: str(each) for key, each in mapping(name, value).items()}


def names(name: str, value: Sequence[str] | None) -> list[str] | None:
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _wrong(name, value, "a list of strings")
    return [text(f"{name}[{index}]", each) for index, each in enumerate(value)]


def mapping(name: str, value: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _wrong(name, value, "a dict")
    for key in value:
        text(f"a key of {name}", key)
    return value


def _wrong(name: str, value: object, advice: str) -> InvalidInput:
    shown = repr(value)
    short = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return InvalidInput(f"{name} must be {advice}, not {short} ({type(value).__name__})")
