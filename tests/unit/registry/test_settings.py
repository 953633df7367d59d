from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from registry.settings import DatabaseSettings, Settings


def test_the_clients_variables_do_not_stop_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URL", "API_KEY", "GROUP", "TIMEOUT"):
        monkeypatch.setenv(f"MODELYARD_{name}", "of the client")
    monkeypatch.setenv("MODELYARD_PORT", "9001")
    assert Settings().port == 9001


def test_a_nested_variable_reaches_its_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELYARD_ENGINE__MICRO_BATCH_TOKENS", "64")
    assert Settings().engine.micro_batch_tokens == 64


def test_a_misspelt_nested_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELYARD_DATABASE__URLL", "sqlite://")
    with pytest.raises(ValidationError, match="urll"):
        Settings()


def test_everything_lies_under_home_by_default(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    assert settings.database_url() == f"sqlite+aiosqlite:///{tmp_path}/modelyard.db"
    paths = [settings.objects_path(), settings.models_path(), settings.credentials_path()]
    assert [path.parent for path in paths] == [tmp_path] * 3


def test_a_plain_postgresql_url_names_our_driver() -> None:
    database = DatabaseSettings(url=SecretStr("postgresql://me@host/db"))
    assert Settings(database=database).database_url() == "postgresql+psycopg://me@host/db"
