"""What a shell offers after Tab: names that the service knows. Where it is slow or away, none."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import typer

from session.cli.references import group_path
from session.cli.service import Service
from session.client.config import from_environment
from session.client.errors import ModelyardError

_PATIENCE_S = 1.0
_MARKS = "@:"


def groups(incomplete: str) -> list[str]:
    return _names("/v1/groups", incomplete)


def sessions(incomplete: str) -> list[str]:
    return _names("/v1/sessions", incomplete)


def deployments(incomplete: str) -> list[str]:
    return _names("/v1/deployments", incomplete)


def webhooks(incomplete: str) -> list[str]:
    return _names("/v1/webhooks", incomplete, key="id")


def aliases(ctx: typer.Context, incomplete: str) -> list[str]:
    """Of the group in another word, which lies unread where an option's value is still missing."""
    group = str(ctx.params.get("group") or next(iter(ctx.args), ""))
    return _names(f"{group_path(group)}/aliases", incomplete, key="alias") if group else []


def references(incomplete: str) -> list[str]:
    """A group, then what may follow its `@` or its `:`."""
    for mark in _MARKS:
        group, found, _ = incomplete.partition(mark)
        if found:
            return [group + rest for rest in _within(group, mark)]
    return groups(incomplete)


def versions(ctx: typer.Context, incomplete: str) -> list[str]:
    """Of the group in the word before. bash splits `facts@2` and `facts:prod` at the mark, which
    then is a word of its own."""
    group = str(ctx.params.get("group") or "")
    if incomplete in {*_MARKS}:
        return _within(group, incomplete)
    return [] if set(group) & {*_MARKS} else [each[1:] for each in _within(group, "@")]


def _within(group: str, mark: str) -> list[str]:
    """The newest versions or all aliases of a group, each with its mark."""
    key, path = ("version", "versions") if mark == "@" else ("alias", "aliases")
    found = [f"{mark}{row[key]}" for row in _rows(f"{group_path(group)}/{path}")]
    return found if mark == "@" else [*found, ":latest"]


def _names(path: str, incomplete: str, *, key: str = "name") -> list[str]:
    names = (str(row[key]) for row in _rows(path) if row.get(key))
    return [name for name in names if name.startswith(incomplete)]


def _rows(path: str) -> list[dict[str, Any]]:
    with _silent():
        config = replace(from_environment(by_argument=False), timeout_s=_PATIENCE_S)
        with Service(config) as service:
            return service.page(path)[0]
    return []


@contextmanager
def _silent() -> Iterator[None]:
    """Whatever is wrong is said by the command itself, once it runs."""
    try:
        yield
    except (ModelyardError, OSError, LookupError, TypeError, ValueError):
        return
