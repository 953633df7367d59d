"""A version as people type it: `GROUP VERSION` or `GROUP@VERSION`."""

from dataclasses import dataclass
from urllib.parse import quote

import typer


@dataclass(frozen=True, slots=True)
class Reference:
    group: str
    version: int

    @property
    def path(self) -> str:
        return f"/v1/groups/{quote(self.group, safe='')}/versions/{self.version}"

    def __str__(self) -> str:
        return f"{self.group}@{self.version}"


def parse_reference(first: str, version: str | None = None) -> Reference:
    written = first if version is None else f"{first}@{version}"
    group, _, number = written.partition("@")
    if not group or not (number.isascii() and number.isdigit()):
        raise typer.BadParameter(f"{written!r} is not GROUP@VERSION, for example facts@2")
    return Reference(group, int(number))
