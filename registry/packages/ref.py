"""How people and wires name a version: GROUP@VERSION."""

import re
from dataclasses import dataclass
from typing import Self

from registry.kit.names import NAME
from registry.packages.errors import InvalidRef

LARGEST_VERSION = 2**31 - 1
_REF = re.compile(rf"(?P<group>{NAME.pattern})@(?P<version>[1-9][0-9]{{0,9}})")


@dataclass(frozen=True, slots=True)
class PackageRef:
    group: str
    version: int

    @classmethod
    def parse(cls, text: str) -> Self:
        found = _REF.fullmatch(text)
        if found is None or int(found["version"]) > LARGEST_VERSION:
            raise InvalidRef(text)
        return cls(found["group"], int(found["version"]))

    def __str__(self) -> str:
        return f"{self.group}@{self.version}"
