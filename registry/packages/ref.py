"""How people and wires name a version: GROUP@VERSION, or GROUP:ALIAS for what that points at."""

import re
from dataclasses import dataclass
from typing import Self

from registry.kit.names import NAME, NAME_RULE
from registry.packages.errors import InvalidRef

LARGEST_VERSION = 2**31 - 1
LATEST = "latest"
"""The alias that nobody sets: it is always the highest number."""

ALIAS = re.compile(rf"(?=[a-zA-Z]){NAME.pattern}")
ALIAS_RULE = f"{NAME_RULE}, with a letter first, and not {LATEST!r}"
ALIASED = re.compile(rf"{NAME.pattern}:{ALIAS.pattern}")
_NUMBER = re.compile(r"[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class PackageRef:
    group: str
    version: int

    @classmethod
    def parse(cls, text: str) -> Self:
        group, _, number = text.partition("@")
        if not NAME.fullmatch(group) or not _NUMBER.fullmatch(number):
            raise InvalidRef(text)
        if int(number) > LARGEST_VERSION:
            raise InvalidRef(text)
        return cls(group, int(number))

    def __str__(self) -> str:
        return f"{self.group}@{self.version}"


@dataclass(frozen=True, slots=True)
class AliasRef:
    group: str
    alias: str

    def __str__(self) -> str:
        return f"{self.group}:{self.alias}"


Ref = PackageRef | AliasRef


def parse_ref(text: str) -> Ref:
    """What only reads a version takes an alias too."""
    if not ALIASED.fullmatch(text):
        return PackageRef.parse(text)
    group, _, alias = text.partition(":")
    return AliasRef(group, alias)


def ref_in(group: str, place: str) -> Ref:
    """What a path names below a group: a number, or an alias. The group may be any text."""
    if ALIAS.fullmatch(place):
        return AliasRef(group, place)
    if not _NUMBER.fullmatch(place) or int(place) > LARGEST_VERSION:
        raise InvalidRef(place)
    return PackageRef(group, int(place))
