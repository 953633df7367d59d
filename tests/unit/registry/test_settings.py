from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from registry.artifacts.bucket import Bucket
from registry.settings import DatabaseSettings, ObjectStoreSettings, Settings
from session.resources import bucket_of


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
    paths = [settings.objects_path(), settings.models_path(), settings.cache_path()]
    assert [path.parent for path in paths] == [tmp_path] * 3


def test_a_plain_postgresql_url_names_our_driver() -> None:
    database = DatabaseSettings(url=SecretStr("postgresql://me@host/db"))
    assert Settings(database=database).database_url() == "postgresql+psycopg://me@host/db"


def test_a_bucket_is_the_store_once_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bucket_of(Settings().objects) is None
    monkeypatch.setenv("MODELYARD_OBJECTS__BUCKET", "weights")
    on_aws = bucket_of(Settings().objects)
    assert on_aws == Bucket(name="weights", addressing="virtual")
    monkeypatch.setenv("MODELYARD_OBJECTS__ENDPOINT", "https://minio:9000")
    assert bucket_of(Settings().objects) == Bucket(name="weights", endpoint="https://minio:9000")


def test_every_setting_of_a_bucket_reaches_it(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "prefix": "team",
        "endpoint": "https://minio:9000",
        "public_endpoint": "https://s3.example.org",
        "region": "eu-west-1",
        "addressing": "virtual",
        "checksums": "when_supported",
        "verify": False,
        "ca_bundle": tmp_path / "ca.pem",
        "part_bytes": 6 * 2**20,
        "concurrency": 3,
        "attempts": 2,
    }
    assert set(given) | {"path", "bucket"} == set(ObjectStoreSettings.model_fields)
    bucket = bucket_of(ObjectStoreSettings(bucket="weights", **given))
    assert bucket == Bucket(name="weights", **given)


@pytest.mark.parametrize(
    "given",
    [
        {"bucket": "b", "path": "/objects"},
        {"endpoint": "http://minio:9000"},
        {"bucket": "b", "part_bytes": 2**20},
        {"bucket": "b", "addressing": "auto"},
        {"bucket": ""},
        {"bucket": "b", "endpoint": "minio:9000"},
    ],
)
def test_settings_that_name_no_one_store_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ObjectStoreSettings(**given)
