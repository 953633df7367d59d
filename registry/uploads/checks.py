"""What an upload may say of itself. Everything here is said by field, before anything is kept."""

import re
from collections.abc import Sequence

from exporters.content import why_never
from registry.artifacts.manifest import FileEntry
from registry.artifacts.names import validate_artifact_name
from registry.kit.names import NAME, NAME_RULE
from registry.packages.limits import check_description, check_files, check_metadata
from registry.packages.model import ADAPTER, PackageKind
from registry.uploads.errors import InvalidUpload
from registry.uploads.model import Limits, UploadWish

LARGEST_TEXT = 64 * 2**20
LARGEST_JSON = 4 * 2**20
"""They are parsed, and templates run: of those no more is taken than a model can want."""
_PARSED = (".json", ".jinja")
_LARGE_JSON = ("tokenizer.json", "vocab.json", ".safetensors.index.json")
LONGEST_TOKEN = 128
_SHA256 = re.compile(r"[0-9a-f]{64}")


def check_group(name: str) -> None:
    if not NAME.fullmatch(name):
        raise InvalidUpload("group", f"{name[:80]!r} is not {NAME_RULE}")


def check_wish(group: str, wish: UploadWish, limits: Limits) -> None:
    check_group(group)
    if not 1 <= len(wish.token) <= LONGEST_TOKEN or not wish.token.isprintable():
        raise InvalidUpload("token", f"is not 1 to {LONGEST_TOKEN} printable characters")
    check_description(wish.description)
    check_metadata(wish.metadata)
    _check_amount(wish.files, limits)
    for index, file in enumerate(wish.files):
        _check_file(f"files[{index}]", file)
    _check_places(wish.files)
    kind, names = PackageKind(wish.kind), [file.path for file in wish.files]
    is_whole = kind != PackageKind.merged or any(name.startswith(ADAPTER) for name in names)
    check_files(kind, names, has_adapter=is_whole)


def _check_amount(files: Sequence[FileEntry], limits: Limits) -> None:
    if not files:
        raise InvalidUpload("files", "is empty")
    if len(files) > limits.files:
        raise InvalidUpload("files", f"{len(files)} of them; at most {limits.files}")
    total = sum(file.size for file in files)
    if total > limits.bytes:
        raise InvalidUpload("files", f"{total} bytes in all; at most {limits.bytes}")


def _check_file(field: str, file: FileEntry) -> None:
    validate_artifact_name(file.path)
    if not _SHA256.fullmatch(file.sha256):
        raise InvalidUpload(
            f"{field}.sha256", f"of {file.path} is not 64 hexadecimal digits in lower case"
        )
    if any(part.startswith(".") for part in file.path.split("/")):
        raise InvalidUpload(f"{field}.path", f"{file.path} is hidden; hidden files are not stored")
    if reason := why_never(file.path):
        raise InvalidUpload(f"{field}.path", f"{file.path} {reason}")
    limit = _limit(file.path)
    if limit is not None and file.size > limit:
        raise InvalidUpload(
            f"{field}.size", f"{file.path} has {file.size} bytes; it may have {limit} at most"
        )


def _limit(path: str) -> int | None:
    if path.endswith(".safetensors"):
        return None
    is_parsed = path.endswith(_PARSED) and not path.endswith(_LARGE_JSON)
    return LARGEST_JSON if is_parsed else LARGEST_TEXT


def _check_places(files: Sequence[FileEntry]) -> None:
    """Every file has a place of its own on every file system, the careless ones too."""
    seen: dict[str, str] = {}
    for file in files:
        name = file.path.casefold()
        if name in seen:
            raise InvalidUpload("files", f"{seen[name]!r} and {file.path!r} are one name to some")
        seen[name] = file.path
    for file in files:
        parts = file.path.casefold().split("/")
        for end in range(1, len(parts)):
            if (folder := "/".join(parts[:end])) in seen:
                raise InvalidUpload("files", f"{seen[folder]!r} is a file and a folder")
