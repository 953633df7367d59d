"""What a version may carry. Everything here is said by field, before anything is written."""

import math
from collections.abc import Mapping, Sequence

from registry.artifacts.names import validate_artifact_name
from registry.packages.errors import InvalidPackage
from registry.packages.model import ADAPTER, PackageDraft, PackageKind
from registry.packages.ref import ALIAS, ALIAS_RULE, LATEST

LONGEST_DESCRIPTION = 1024
MOST_METADATA = 50
LONGEST_KEY = 128
LONGEST_VALUE = 1024
MOST_METRICS = 200
MOST_TAGS = 50


def check_draft(draft: PackageDraft, *, prefix: str) -> None:
    if draft.prefix != prefix:
        raise InvalidPackage("prefix", f"is {draft.prefix!r}, but these files belong to {prefix!r}")
    check_description(draft.description)
    check_metadata(draft.user_metadata)
    check_metrics(draft.metrics)
    names = [validate_artifact_name(file.path) for file in draft.files]
    kind = PackageKind(draft.kind)
    check_files(kind, names, has_adapter=bool(draft.lora) or kind != PackageKind.merged)


def check_description(text: str) -> None:
    check_text("description", text)


def check_text(field: str, text: str) -> None:
    if len(text) > LONGEST_DESCRIPTION:
        raise InvalidPackage(field, f"{len(text)} characters; at most {LONGEST_DESCRIPTION}")
    if "\0" in text:
        raise InvalidPackage(field, "holds a NUL character")


def check_tags(tags: Sequence[str]) -> None:
    if len(tags) > MOST_TAGS:
        raise InvalidPackage("tags", f"{len(tags)} of them; at most {MOST_TAGS}")
    for tag in tags:
        if not 1 <= len(tag) <= LONGEST_KEY or not tag.isprintable() or tag != tag.strip():
            raise InvalidPackage(
                "tags",
                f"{tag[:LONGEST_KEY]!r} is not 1 to {LONGEST_KEY} printable characters "
                "without a blank at either end",
            )


def check_alias(name: str) -> None:
    if not ALIAS.fullmatch(name) or name == LATEST:
        raise InvalidPackage("alias", f"{name[:LONGEST_KEY]!r} is not {ALIAS_RULE}")


def check_metadata(metadata: Mapping[str, str]) -> None:
    if len(metadata) > MOST_METADATA:
        raise InvalidPackage("metadata", f"{len(metadata)} entries; at most {MOST_METADATA}")
    for key, value in metadata.items():
        _check_key("metadata", key)
        if len(value) > LONGEST_VALUE or "\0" in value:
            raise InvalidPackage(
                f"metadata.{key}", f"longer than {LONGEST_VALUE} characters, or with a NUL in it"
            )


def check_metrics(metrics: Mapping[str, float]) -> None:
    """JSON has no infinity, and a database refuses one much later."""
    if len(metrics) > MOST_METRICS:
        raise InvalidPackage("metrics", f"{len(metrics)} entries; at most {MOST_METRICS}")
    for key, value in metrics.items():
        _check_key("metrics", key)
        if not math.isfinite(value):
            raise InvalidPackage(f"metrics.{key}", f"{value} is not a finite number")


def _check_key(field: str, key: str) -> None:
    if not key or len(key) > LONGEST_KEY or "\0" in key:
        raise InvalidPackage(
            field, f"key {key[:LONGEST_KEY]!r} is not 1 to {LONGEST_KEY} characters without NUL"
        )


def check_files(kind: PackageKind, names: Sequence[str], *, has_adapter: bool) -> None:
    """Full weights that nobody trained here may come without an adapter."""
    if len(set(names)) < len(names):
        raise InvalidPackage("files", "the same path is listed twice")
    needed = [part for part in kind.parts if has_adapter or part != ADAPTER]
    missing = [part for part in needed if not any(name.startswith(part) for name in names)]
    if missing:
        raise InvalidPackage("files", f"a version of kind {kind} needs {', '.join(missing)}")
    foreign = [name for name in names if not name.startswith(kind.parts)]
    if foreign:
        raise InvalidPackage("files", f"{foreign[0]!r} is no part of kind {kind}")
