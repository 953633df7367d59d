import json
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from exporters.base import BadFile
from exporters.tensor_file import TensorEntry, is_pickled, read_header


def file_with(path: Path, header: Any, data: bytes) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_the_header_of_a_real_file_is_read(tmp_path: Path) -> None:
    save_file({"a": np.zeros((2, 3), np.float32)}, tmp_path / "x.safetensors", {"format": "pt"})
    assert read_header(tmp_path / "x.safetensors") == {"a": TensorEntry("F32", (2, 3), 0, 24)}


@pytest.mark.parametrize(
    ("header", "data", "reason"),
    [
        (b"{nonsense", b"", "not valid JSON"),
        ({"a": entry("F32", [2], 0, 8)}, b"1234", "it is cut"),
        ({"a": entry("F32", [2], 0, 8)}, b"123456789", "it is cut"),
        ({"a": entry("F32", [3], 0, 8)}, b"12345678", "not what its shape says"),
        ({"a": entry("F32", [1], 4, 8)}, b"12345678", "leaves a hole"),
        (
            {"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 0, 4)},
            b"1234",
            "overlaps another tensor",
        ),
        ({"a": entry("PICKLE", [1], 0, 4)}, b"1234", "dtype 'PICKLE'"),
        ({"a": entry("F32", [-1], 0, -4)}, b"", "malformed"),
        ({"a": {"dtype": "F32"}}, b"", "malformed"),
        (b'{"a": 1, "a": 2}', b"", "names a tensor twice"),
    ],
)
def test_a_header_that_does_not_fit_its_file_is_refused(
    tmp_path: Path, header: Any, data: bytes, reason: str
) -> None:
    with pytest.raises(BadFile, match=reason):
        read_header(file_with(tmp_path / "x.safetensors", header, data))


def test_a_header_longer_than_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", 10**12) + b"{}")
    with pytest.raises(BadFile, match="cut or damaged"):
        read_header(tmp_path / "x.safetensors")


def test_a_pickle_is_known_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(pickle.dumps({"a": 1}))
    assert is_pickled(tmp_path / "notes.txt")


def test_an_archive_is_known_by_its_content(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.safetensors", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"a": 1}))
    assert is_pickled(tmp_path / "model.safetensors")


def test_a_safetensors_header_of_0x280_bytes_is_no_pickle(tmp_path: Path) -> None:
    header = json.dumps({}).ljust(0x280).encode()
    assert not is_pickled(file_with(tmp_path / "x.safetensors", header, b""))
