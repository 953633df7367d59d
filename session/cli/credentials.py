"""The file in which `modelyard serve` leaves the first admin token for the client and the CLI."""

import json
import os
import tempfile
from pathlib import Path


def write_credentials(home: Path, url: str, api_key: str) -> Path:
    """Whole or not at all, and never readable by another user, not even for a moment."""
    target = home / "credentials"
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
    try:
        found = json.loads((home / "credentials").read_text())
    except FileNotFoundError:
        return None
    return found["url"], found["api_key"]
