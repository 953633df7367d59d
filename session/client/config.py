"""Where the service is and who we are: argument, then environment, then the credentials file."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from session.client.checks import number, optional_text
from session.client.errors import ConfigurationError

DEFAULT_TIMEOUT_S = 300.0
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


@dataclass(frozen=True)
class Config:
    url: str
    api_key: str
    group: str | None
    timeout_s: float
    cache: Path


def resolve(
    env: Mapping[str, str],
    *,
    url: str | None = None,
    api_key: str | None = None,
    group: str | None = None,
    timeout: float | None = None,
    by_argument: bool = True,
) -> Config:
    """`by_argument` says whether whoever asks could have passed what is missing."""
    for name, value in (("url", url), ("api_key", api_key), ("group", group)):
        optional_text(name, value)
    path = credentials_path(Path(env.get("MODELYARD_HOME") or "~/.modelyard").expanduser())
    found = _credentials(path)
    address = url or env.get("MODELYARD_URL") or found.get("url")
    if not address:
        raise ConfigurationError(
            f"no URL of the service: {_advice('url', 'MODELYARD_URL', path, by_argument)}"
        )
    address = _checked(address)
    # A key is sent only to the host it was written for.
    own = found.get("api_key") if _same_host(address, found.get("url")) else None
    key = api_key or env.get("MODELYARD_API_KEY") or own
    if not key:
        advice = _advice("api_key", "MODELYARD_API_KEY", path, by_argument)
        other = f" (that file is for {found['url']})" if "url" in found else ""
        raise ConfigurationError(f"no API key: {advice}{other}")
    return Config(
        url=address,
        api_key=key,
        group=group or env.get("MODELYARD_GROUP") or found.get("group"),
        timeout_s=_seconds(timeout, env.get("MODELYARD_TIMEOUT")),
        cache=Path(env.get("MODELYARD_CACHE") or "~/.cache/modelyard").expanduser(),
    )


def credentials_path(home: Path) -> Path:
    """Where `modelyard serve` leaves its address and the first token."""
    return home / "credentials"


def from_environment(**given: Any) -> Config:
    return resolve(os.environ, **given)


def _credentials(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ConfigurationError(f"{path} is not a JSON object")
    return found


def _advice(argument: str, variable: str, path: Path, by_argument: bool) -> str:
    start = f"pass ServiceClient({argument}=...), " if by_argument else ""
    return f"{start}set {variable}, or start `modelyard serve` on this machine, which writes {path}"


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigurationError(f"url {url!r} must start with http:// or https:// and name a host")
    return url.rstrip("/")


def _same_host(url: str, other: str | None) -> bool:
    hosts = {urlsplit(url).hostname, urlsplit(other or "").hostname}
    return len(hosts) == 1 or hosts <= _LOOPBACK


def _seconds(given: float | None, variable: str | None) -> float:
    if given is not None:
        return _positive(number("timeout", given))
    if not variable:
        return DEFAULT_TIMEOUT_S
    try:
        return _positive(float(variable))
    except ValueError:
        raise ConfigurationError(f"MODELYARD_TIMEOUT {variable!r} is not a number") from None


def _positive(seconds: float) -> float:
    if not seconds > 0:
        raise ConfigurationError(f"timeout must be more than 0 seconds, not {seconds}")
    return seconds
