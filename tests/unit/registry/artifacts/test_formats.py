import io
import json
import pickle
import struct
import zipfile
from pathlib import Path

import pytest

from registry.artifacts.errors import ArtifactRefused
from registry.artifacts.formats import refuse_pickle


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        raise_if_run = "raise SystemExit('unpickled')"
        return exec, (raise_if_run,)


def zipped(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", data)
    return buffer.getvalue()


def safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4)


@pytest.mark.parametrize("name", ["optimizer.pt", "model.safetensors", "a.json", "a.txt", "a"])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_refused_under_any_name(tmp_path: Path, name: str, protocol: int) -> None:
    path = tmp_path / name
    path.write_bytes(pickle.dumps({"o": Evil()}, protocol=protocol))
    with pytest.raises(ArtifactRefused, match=name):
        refuse_pickle(path)


@pytest.mark.parametrize("name", ["weights.bin", "model.safetensors", "tokenizer.model", "a.zip"])
def test_a_pickle_in_a_zip_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(zipped(pickle.dumps(Evil())))
    with pytest.raises(ArtifactRefused, match=name):
        refuse_pickle(path)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("model.safetensors", safetensors()),
        ("config.json", b'{"a": 1}'),
        ("merges.txt", "#version: 0.2\nĠ t\n".encode()),
        ("chat_template.jinja", b"{{ messages }}"),
        ("tokenizer.model", b"\x0a\x0e\x0a\x05<unk>"),
        ("empty.txt", b""),
    ],
)
def test_what_a_version_needs_is_admitted(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    refuse_pickle(tmp_path / name)


def test_json_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ArtifactRefused, match=r"config\.json: is not JSON"):
        refuse_pickle(tmp_path / "config.json")
