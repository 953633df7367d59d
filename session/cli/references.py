"""A version as people type it: `GROUP VERSION`, `GROUP@VERSION` or `GROUP:ALIAS`.

Where it is only read, `GROUP` alone is its newest.
"""

import re
from dataclasses import dataclass
from urllib.parse import quote

import typer

_ALIAS = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*")


@dataclass(frozen=True, slots=True)
class Reference:
    group: str
    version: int | str
    """Text where it is an alias."""

    @property
    def path(self) -> str:
        return f"{group_path(self.group)}/versions/{self.version}"

    def __str__(self) -> str:
        mark = "@" if isinstance(self.version, int) else ":"
        return f"{self.group}{mark}{self.version}"


def group_path(group: str) -> str:
    if "/" in group or not group.isprintable():
        raise typer.BadParameter(f"{group!r} is not the name of a group")
    return f"/v1/groups/{quote(group, safe='')}"


def parse_reference(first: str, version: str | None = None) -> Reference:
    written = first if version is None else f"{first}@{version}"
    group, _, number = written.partition("@")
    if group and number.isascii() and number.isdigit():
        return Reference(group, int(number))
    group, _, alias = written.partition(":")
    if group and "@" not in group and _ALIAS.fullmatch(alias):
        return Reference(group, alias)
    raise typer.BadParameter(f"{written!r} is not GROUP@VERSION, as facts@2, or GROUP:ALIAS")


def parse_source(first: str, version: str | None = None) -> Reference:
    """Of a version that is only read."""
    alone = version is None and first and not set(first) & {"@", ":"}
    return Reference(first, "latest") if alone else parse_reference(first, version)
