"""What a directory from outside may be, and what it is refused for: by file and by reason."""

import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from exporters import directory
from exporters.base import BadFile
from support.model_files import change_json, change_tensors, random_adapter, split
from support.tiny import tiny_model


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "base")


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    return random_adapter(base, tmp_path / "adapter", targets=("q_proj", "lm_head"))


def look(path: Path, kind: str | None = None) -> directory.Content:
    return directory.examine(directory.recognise(path, kind))


def test_an_adapter_is_recognised_and_laid_out_as_in_a_version(adapter: Path) -> None:
    (adapter / ".gitattributes").write_text("* binary")
    layout = directory.recognise(adapter)
    assert layout.kind == "adapter"
    assert "checkpoints/hf/adapter_model.safetensors" in layout.files
    assert all("/.git" not in name for name in layout.files)


def test_a_whole_model_is_recognised(base: Path) -> None:
    layout = directory.recognise(base)
    assert layout.kind == "merged"
    assert "checkpoints/hf_merged/model.safetensors" in layout.files


def test_a_version_that_was_pulled_keeps_its_paths(adapter: Path, tmp_path: Path) -> None:
    pulled = tmp_path / "pulled"
    shutil.copytree(adapter, pulled / "checkpoints" / "hf")
    layout = directory.recognise(pulled)
    assert layout.kind == "adapter"
    assert set(layout.files) == {
        path.relative_to(pulled).as_posix() for path in pulled.rglob("*") if path.is_file()
    }


def test_a_directory_that_is_both_needs_a_kind(base: Path, adapter: Path) -> None:
    for file in adapter.glob("adapter_*"):
        shutil.copy(file, base)
    with pytest.raises(BadFile, match="an adapter and a whole model; say which kind"):
        directory.recognise(base)
    assert directory.recognise(base, "adapter").kind == "adapter"


def test_a_directory_of_another_kind_than_asked_is_refused(adapter: Path) -> None:
    with pytest.raises(BadFile, match="holds a version of kind adapter, not merged"):
        directory.recognise(adapter, "merged")


def test_an_empty_directory_is_refused_with_what_it_could_be(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"neither a PEFT adapter \(adapter_config\.json\)"):
        directory.recognise(tmp_path)


def test_a_link_is_refused(adapter: Path) -> None:
    (adapter / "lnk").symlink_to("/etc")
    with pytest.raises(BadFile, match="lnk: is not a plain file"):
        directory.recognise(adapter)


class Evil:
    """Unpickling this would end the tests."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (exit, (3,))


def evil(path: Path) -> None:
    torch.save({"o": Evil()}, path)


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", pickle.dumps(Evil()))


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("optimizer.pt", evil),
        ("model.safetensors", evil),
        ("weights.bin", zipped),
        ("notes.txt", lambda path: path.write_bytes(pickle.dumps(Evil(), protocol=0))),
        ("sub/rng_state.pth", evil),
    ],
)
def test_a_pickle_is_refused_whatever_it_is_called(
    adapter: Path, name: str, write: Callable[[Path], None]
) -> None:
    (adapter / name).parent.mkdir(exist_ok=True)
    write(adapter / name)
    with pytest.raises(BadFile, match=f"{name}: .*(pickle|pickled)"):
        look(adapter)


@pytest.mark.parametrize("path", ["/root/base", "C:\\base", "\\\\host\\share", "~/x", "file:///x"])
def test_an_absolute_path_in_any_json_is_refused(adapter: Path, path: str) -> None:
    change_json(adapter / "generation_config.json", deep={"list": [1, {"where": path}]})
    with pytest.raises(BadFile) as caught:
        look(adapter)
    assert caught.value.file == "checkpoints/hf/generation_config.json"
    assert "deep.list[1].where is the absolute path" in caught.value.reason


def test_a_token_that_looks_like_a_path_is_a_token(adapter: Path) -> None:
    tokens = {"50": {"content": "/think", "special": True}}
    change_json(adapter / "tokenizer_config.json", added_tokens_decoder=tokens, eos_token="/end")
    assert look(adapter).adapter is not None


def cut(model: Path) -> None:
    file = sorted(model.glob("*.safetensors"))[0]
    file.write_bytes(file.read_bytes()[:-100])


def duplicate(model: Path) -> None:
    """One tensor of the second shard stands in the first one too."""
    first, second = sorted(model.glob("*.safetensors"))[:2]
    name = sorted(json.loads((model / "model.safetensors.index.json").read_text())["weight_map"])[1]
    change_tensors(first, lambda tensors: tensors.update({name: torch.zeros(1)}))
    assert second.exists()


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (
            lambda model: (model / "model-00002-of-00003.safetensors").unlink(),
            "model-00002-of-00003.safetensors: is named by .*, but missing",
        ),
        (lambda model: (model / INDEX).unlink(), f"{INDEX}: is missing"),
        (cut, r"model-00001-of-00003.safetensors: .*it is cut"),
        (duplicate, "model-00001-of-00003.safetensors: holds the tensor .* does not place there"),
        (
            lambda model: save_file({"x": torch.zeros(1)}, model / "extra.safetensors"),
            "extra.safetensors: is not part of the model",
        ),
        (
            lambda model: change_json(model / INDEX, metadata={"total_size": 1}),
            f"{INDEX}: total_size is 1",
        ),
        (
            lambda model: change_json(model / INDEX, weight_map={"x": ["y"]}),
            f"{INDEX}: places x in",
        ),
        (
            lambda model: (model / "generation_config.json").write_text("{"),
            "generation_config.json: is not JSON",
        ),
    ],
)
def test_damage_of_a_sharded_model_is_named(
    base: Path, damage: Callable[[Path], object], named: str
) -> None:
    damage(split(base, shards=3))
    with pytest.raises(BadFile, match=f"checkpoints/hf_merged/{named}"):
        look(base)


def test_weights_that_nothing_names_are_refused(adapter: Path) -> None:
    save_file({"x": torch.zeros(1)}, adapter / "other.safetensors")
    with pytest.raises(BadFile, match=r"other\.safetensors: is no part of the weights"):
        look(adapter)


def state_of(adapter: Path, version: Path) -> Path:
    """A version of kind state around an adapter."""
    shutil.copytree(adapter, version / "checkpoints" / "hf")
    (version / "state").mkdir()
    counters = {"version": 1, "step": 3, "adam_step": 3, "has_gradient": False, "poisoned": False}
    (version / "state" / "state.json").write_text(json.dumps({**counters, "rng": {"seed": 7}}))
    content = look(adapter)
    assert content.adapter is not None
    moments = {
        f"{moment}.{name}": torch.zeros(entry.shape)
        for moment in ("exp_avg", "exp_avg_sq")
        for name, entry in content.adapter.tensors.items()
    }
    save_file(moments, version / "state" / "optimizer.safetensors")
    return version


def test_a_state_says_its_step_and_its_seed(adapter: Path, tmp_path: Path) -> None:
    content = look(state_of(adapter, tmp_path / "version"))
    assert (content.step, content.seed) == (3, 7)


def test_an_optimizer_of_another_adapter_is_refused(adapter: Path, tmp_path: Path) -> None:
    version = state_of(adapter, tmp_path / "version")
    change_tensors(
        version / "state" / "optimizer.safetensors",
        lambda tensors: tensors.update({sorted(tensors)[0]: torch.zeros(2, 2)}),
    )
    with pytest.raises(BadFile, match=r"state/optimizer\.safetensors: .* has shape \[2, 2\]"):
        look(version)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"step": -1}, "step is -1"),
        ({"step": 2**40}, "step is"),
        ({"adam_step": "3"}, "adam_step is '3'"),
        ({"rng": [7]}, "rng.seed is None"),
        ({"has_gradient": True}, "gradient.safetensors: is missing"),
    ],
)
def test_counters_that_make_no_sense_are_refused(
    adapter: Path, tmp_path: Path, values: dict[str, Any], said: str
) -> None:
    version = state_of(adapter, tmp_path / "version")
    change_json(version / "state" / "state.json", **values)
    with pytest.raises(BadFile, match=said):
        look(version)
