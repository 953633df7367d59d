from collections.abc import Sequence
from pathlib import Path

from registry.kit.errors import Kind, ServiceError

_HOW_TO_ADD = (
    "none yet; add one with `modelyard models add NAME PATH`, or without PATH where Modelyard can "
    "fetch it, such as smollm2-135m-instruct"
)


class ModelNotFound(ServiceError):
    kind = Kind.not_found

    def __init__(self, name: str, *, known: Sequence[str]) -> None:
        have = ", ".join(known) or _HOW_TO_ADD
        super().__init__(f"no base model named {name!r}; this service has: {have}")


class ModelExists(ServiceError):
    kind = Kind.conflict

    def __init__(self, name: str, *, registered: str, offered: str) -> None:
        super().__init__(
            f"base model {name!r} is registered with digest {registered}, these files have "
            f"{offered}; choose another name"
        )


class InvalidModelName(ServiceError):
    kind = Kind.invalid

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name!r} is no name for a base model; write NAME or ORG/NAME of letters, digits, "
            "'.', '_' and '-'"
        )


class ModelFileNotFound(ServiceError):
    kind = Kind.not_found

    def __init__(self, name: str, file: str) -> None:
        super().__init__(f"base model {name!r} has no tokenizer file {file!r}")


class ModelFileChanged(ServiceError):
    kind = Kind.unavailable

    def __init__(self, name: str, file: str) -> None:
        super().__init__(f"base model {name!r} is no longer what was registered: {file}")


class ModelFileMissing(ServiceError):
    kind = Kind.unavailable

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(f"base model {name!r} cannot be read: {path} is missing")
