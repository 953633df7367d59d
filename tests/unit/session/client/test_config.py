import json
from pathlib import Path

import pytest

from session.client.config import DEFAULT_TIMEOUT_S, resolve
from session.client.errors import ConfigurationError


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    found = {"url": "http://127.0.0.1:8642", "api_key": "my-file"}
    (tmp_path / "credentials").write_text(json.dumps(found))
    return {"MODELYARD_HOME": str(tmp_path)}


def test_the_credentials_file_is_enough(env: dict[str, str]) -> None:
    config = resolve(env)
    assert (config.url, config.api_key) == ("http://127.0.0.1:8642", "my-file")
    assert (config.group, config.timeout_s) == (None, DEFAULT_TIMEOUT_S)


def test_the_environment_wins_over_the_file_and_arguments_over_both(env: dict[str, str]) -> None:
    env |= {"MODELYARD_API_KEY": "my-env", "MODELYARD_GROUP": "g", "MODELYARD_TIMEOUT": "5"}
    assert resolve(env).api_key == "my-env"
    given = resolve(env, url="https://a/", api_key="my-arg", group="h", timeout=7)
    assert (given.url, given.api_key) == ("https://a", "my-arg")
    assert (given.group, given.timeout_s) == ("h", 7.0)


@pytest.mark.parametrize("missing", ["url", "api_key"])
def test_a_missing_setting_is_named_with_how_to_give_it(missing: str, tmp_path: Path) -> None:
    env = {"MODELYARD_HOME": str(tmp_path), "MODELYARD_URL": "http://a", "MODELYARD_API_KEY": "k"}
    variable = f"MODELYARD_{missing.upper()}"
    del env[variable]
    with pytest.raises(
        ConfigurationError, match=rf"ServiceClient\({missing}=.*{variable}.*{tmp_path}"
    ):
        resolve(env)


def test_the_files_key_is_never_sent_to_another_host(env: dict[str, str]) -> None:
    assert resolve(env, url="http://localhost:9000").api_key == "my-file"
    with pytest.raises(ConfigurationError, match=r"no API key.*that file is for http://127"):
        resolve(env, url="http://elsewhere:8642")


@pytest.mark.parametrize("url", ["127.0.0.1:8642", "ftp://host", "http://"])
def test_a_url_names_scheme_and_host(env: dict[str, str], url: str) -> None:
    with pytest.raises(ConfigurationError, match="http://"):
        resolve(env, url=url)


@pytest.mark.parametrize("timeout", ["soon", "0", "-1", "nan"])
def test_a_timeout_is_some_seconds(env: dict[str, str], timeout: str) -> None:
    with pytest.raises(ConfigurationError, match=r"(?i)timeout"):
        resolve(env | {"MODELYARD_TIMEOUT": timeout})


def test_a_broken_credentials_file_is_named(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("{")
    with pytest.raises(ConfigurationError, match="credentials cannot be read"):
        resolve(env)
