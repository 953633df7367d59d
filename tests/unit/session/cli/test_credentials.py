import stat
from pathlib import Path

import pytest

from session.cli.credentials import read_credentials, write_credentials
from session.client.config import resolve


def test_only_the_owner_may_read_them(tmp_path: Path) -> None:
    path = write_credentials(tmp_path, "http://127.0.0.1:1", "my-secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_writing_again_replaces_them_and_leaves_nothing_else(tmp_path: Path) -> None:
    write_credentials(tmp_path, "http://127.0.0.1:1", "my-first")
    write_credentials(tmp_path, "http://127.0.0.1:2", "my-second")
    assert read_credentials(tmp_path) == ("http://127.0.0.1:2", "my-second")
    assert [file.name for file in tmp_path.iterdir()] == ["credentials"]


def test_the_client_reads_what_is_written(tmp_path: Path) -> None:
    write_credentials(tmp_path, "http://127.0.0.1:1", "my-secret")
    config = resolve({"MODELYARD_HOME": str(tmp_path)})
    assert (config.url, config.api_key) == ("http://127.0.0.1:1", "my-secret")


def test_a_target_that_cannot_be_replaced_leaves_no_secret_behind(tmp_path: Path) -> None:
    (tmp_path / "credentials").mkdir()
    with pytest.raises(OSError, match="credentials"):
        write_credentials(tmp_path, "http://127.0.0.1:1", "my-secret")
    assert [file.name for file in tmp_path.iterdir()] == ["credentials"]


def test_there_may_be_none(tmp_path: Path) -> None:
    assert read_credentials(tmp_path) is None
