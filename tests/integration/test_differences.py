"""Versions of a real session compared, and numbers logged to them, by client and command line."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import modelyard
from support.service import Service
from support.service import modelyard as command
from support.training import batch, step


def updates(directory: Path) -> dict[str, torch.Tensor]:
    """Each module's change of the weights, from a PEFT adapter's own files."""
    folder = directory / "checkpoints" / "hf"
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    scaling = config["lora_alpha"] / config["r"]
    return {
        key.removeprefix("base_model.model.").removesuffix(".lora_A.weight"): scaling
        * (tensors[key.replace("lora_A", "lora_B")].double() @ a.double())
        for key, a in tensors.items()
        if ".lora_A." in key
    }


@pytest.fixture
def saved(training: modelyard.TrainingClient) -> tuple[str, str]:
    """Two versions of one session, three steps apart."""
    step(training, batch(1))
    first = training.save_state().result().ref
    for number in range(3):
        step(training, batch(number))
    return first, training.save_weights_for_sampler().result().ref


def test_how_far_a_session_moved_its_adapter_is_what_its_files_say(
    client: modelyard.ServiceClient, saved: tuple[str, str], tmp_path: Path
) -> None:
    old, new = saved
    for ref in saved:
        client.pull(ref, tmp_path / ref).result()
    before, after = updates(tmp_path / old), updates(tmp_path / new)
    found = client.weight_change(new, old).result()
    assert {each.name for each in found.tensors} == before.keys() == after.keys()
    for each in found.tensors:
        moved = torch.linalg.norm(after[each.name] - before[each.name]).item()
        assert each.difference == pytest.approx(moved, rel=1e-5)
        assert moved > 0
    assert found.compared == len(before)
    whole = client.diff(new, old)
    changed = {change.field: (change.before, change.after) for change in whole.configuration}
    assert changed["step"] == (1, 4)
    assert changed["kind"] == ("state", "adapter")


def test_the_command_line_compares_logs_and_sets_the_rule(
    service: Service, client: modelyard.ServiceClient, saved: tuple[str, str]
) -> None:
    old, new = saved
    group = old.partition("@")[0]
    lines = command(service.home, "diff", old, new, "--tensors", "--json")
    *tensors, total = map(json.loads, lines.stdout.splitlines())
    assert (total["line"], total["compared"]) == ("total", len(tensors))
    logged = command(service.home, "versions", "log", new, "accuracy=0.5", "--step", "9")
    assert logged.returncode == 0, logged.stderr
    (metric,) = client.list_metrics(new)
    assert (metric.name, metric.step, metric.value) == ("accuracy", 9, 0.5)
    table = command(service.home, "diff", old, new)
    assert table.returncode == 0, table.stderr
    assert any(line.split()[:3] == ["accuracy", "-", "0.5"] for line in table.stdout.splitlines())
    edited = command(service.home, "groups", "edit", group, "--require-approval", "--why", "audit")
    assert edited.returncode == 0, edited.stderr
    (move,) = client.history(group)
    assert (move.kind, move.before, move.after) == ("require_approval", "off", "on")


def test_a_pending_version_of_a_group_that_requires_approval_is_not_promoted(
    client: modelyard.ServiceClient, training: modelyard.TrainingClient, group: str
) -> None:
    merged = training.save_merged().result().ref
    client.edit_group(group, require_approval=True)
    with pytest.raises(modelyard.ConflictError, match=f"modelyard approve {merged}"):
        client.promote(merged, "guarded").result(60)
