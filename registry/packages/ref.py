"""How people and wires name a version: GROUP@VERSION."""

import re
from dataclasses import dataclass
from typing import Self

from registry.packages.errors import InvalidRef

GROUP_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
LARGEST_VERSION = 2**31 - 1
_REF = re.compile(rf"(?P<group>{GROUP_NAME.pattern})@(?P<version>[1-9][0-9]{{0,9}})")


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
