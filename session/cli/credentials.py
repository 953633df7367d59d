"""The file in which `modelyard serve` leaves the first admin token for the client and the CLI."""

import json
import os
import tempfile
from pathlib import Path

from registry.kit.errors import Kind, ServiceError
from session.client.config import credentials_path


class CredentialsDamaged(ServiceError):
    kind = Kind.precondition_failed

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} holds no url and api_key; remove it, and make a token with"
            " `modelyard tokens create` if it is lost"
        )


def write_credentials(home: Path, url: str, api_key: str) -> Path:
    """Whole or not at all, and never readable by another user, not even for a moment."""
    target = credentials_path(home)
    handle, name = tempfile.mkstemp(dir=home, prefix=".credentials-")  # mkstemp makes it 0600
    try:
        with os.fdopen(handle, "w") as file:
            json.dump({"url": url, "api_key": api_key}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
    return target


def read_credentials(home: Path) -> tuple[str, str] | None:
    """URL and API key, or None where no file is."""
    path = credentials_path(home)
    try:
        found = json.loads(path.read_text())
        return found["url"], found["api_key"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise CredentialsDamaged(path) from None
