"""Two versions compared, as a client of the registry's REST sees it."""

import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import torch
from safetensors.torch import save

from registry.access import service as access
from registry.access.actor import Role
from registry.artifacts.manifest import FileEntry
from registry.kit.db import Database
from registry.packages.model import PackageKind
from support.packages import a_version
from support.registry_service import Service, is_problem, registry_service

HF = "checkpoints/hf/"
MERGED = "checkpoints/hf_merged/"
TENSORS = f"{HF}adapter_model.safetensors"
DIFF = "/v1/groups/demo/versions/2/diff"


@pytest.fixture
async def service(database: Database) -> AsyncIterator[Service]:
    async with registry_service(database) as service:
        yield service


async def publish(service: Service, blobs: Mapping[str, bytes], **more: Any) -> str:
    """The next version of `demo`, with these files; returns where they lie."""
    files = [FileEntry(p, len(d), hashlib.sha256(d).hexdigest()) for p, d in blobs.items()]
    async with service.database.begin() as db:
        package = await a_version(db, service.alice, files=files, **more)
    for path, data in blobs.items():
        await service.store.put_bytes(package.prefix + path, data)
    return package.prefix


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def adapter(rank: int, *, seed: int) -> dict[str, torch.Tensor]:
    module = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    return {
        f"{module}A.weight": random(rank, 12, seed=seed),
        f"{module}B.weight": random(10, rank, seed=seed + 1),
    }


def update(tensors: Mapping[str, torch.Tensor], scaling: float) -> torch.Tensor:
    a, b = tensors.values()
    return scaling * (b.double() @ a.double())


def norm(tensor: torch.Tensor) -> float:
    return float(torch.linalg.norm(tensor.double()))


async def lines(service: Service, query: str = "?against=1&tensors=true") -> list[dict[str, Any]]:
    answer = await service.client.get(DIFF + query)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson")
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_configuration_metrics_usage_and_files_are_compared(service: Service) -> None:
    old = {"rank": 4, "alpha": 8.0, "targets": ["q_proj"], "seed": 1}
    await publish(
        service,
        {TENSORS: b"one", f"{HF}gone.json": b"{}", f"{HF}same.json": b"[]"},
        **{"lora": old, "step": 1, "metrics": {"loss": 0.75, "old": 1.0}, "usage": {"train": 5}},
    )
    await publish(
        service,
        {TENSORS: b"two!", f"{HF}new.json": b"{}", f"{HF}same.json": b"[]"},
        **{"lora": {**old, "rank": 8}, "step": 3, "metrics": {"loss": 0.25}, "usage": {"train": 9}},
        user_metadata={"data": "b"},
    )
    found = (await service.client.get(f"{DIFF}?against=demo@1")).json()
    assert (found["version"], found["against"]) == ("demo@2", "demo@1")
    assert found["configuration"] == [
        {"field": "lora.rank", "before": 4, "after": 8},
        {"field": "metadata.data", "before": None, "after": "b"},
        {"field": "step", "before": 1, "after": 3},
    ]
    assert found["metrics"] == [
        {"name": "loss", "before": 0.75, "after": 0.25, "difference": -0.5},
        {"name": "old", "before": 1.0, "after": None, "difference": None},
    ]
    assert found["usage"] == [{"field": "train", "before": 5, "after": 9}]
    files = found["files"]
    assert [file["path"] for file in files["added"] + files["removed"]] == [
        f"{HF}new.json",
        f"{HF}gone.json",
    ]
    ((changed,), same) = files["changed"], files["same"]
    assert (changed["before"]["size"], changed["after"]["size"], same) == (3, 4, 1)


async def test_how_far_an_adapter_moved_is_told_by_module_whatever_the_ranks(
    service: Service,
) -> None:
    one, two = adapter(2, seed=1), adapter(5, seed=7)
    await publish(service, {TENSORS: save(one)}, lora={"rank": 2, "alpha": 8.0})
    await publish(service, {TENSORS: save(two)}, lora={"rank": 5, "alpha": 5.0})
    module, total = await lines(service)
    before, after = update(one, 4.0), update(two, 1.0)
    assert module["name"] == "model.layers.0.self_attn.q_proj"
    assert module["shape"] == [10, 12]
    assert module["before"] == pytest.approx(norm(before), rel=1e-5)
    assert module["after"] == pytest.approx(norm(after), rel=1e-5)
    assert module["difference"] == pytest.approx(norm(after - before), rel=1e-5)
    assert module["factors"]["a"]["after"] == pytest.approx(
        norm(next(iter(two.values()))), rel=1e-5
    )
    assert module["factors"]["b"]["difference"] is None  # their shapes differ
    assert total == {
        **{"line": "total", "tensors": 1, "compared": 1},
        "difference": module["difference"],
    }


def merged(shards: Mapping[str, dict[str, torch.Tensor]]) -> dict[str, bytes]:
    return {f"{HF}a.json": b"{}", **{MERGED + name: save(found) for name, found in shards.items()}}


@pytest.mark.parametrize("shards", [("s1", "s2"), ("s2", "s1"), ("s1", "s1")])
async def test_how_far_merged_weights_moved_is_told_whatever_the_shards(
    service: Service, shards: tuple[str, str]
) -> None:
    """Two tensors of two sizes, in the second version in one file, or each in the other's."""
    old = {f"w{n}": random(3, 4 + n, seed=n).to(torch.bfloat16) for n in (1, 2)}
    new = {name: tensor + 1 for name, tensor in old.items()}
    first = merged({"s1.safetensors": {"w1": old["w1"]}, "s2.safetensors": {"w2": old["w2"]}})
    split: dict[str, dict[str, torch.Tensor]] = {}
    for shard, (name, tensor) in zip(shards, new.items(), strict=True):
        split.setdefault(f"{shard}.safetensors", {})[name] = tensor
    for blobs in (first, merged(split)):
        await publish(service, blobs, kind=PackageKind.merged)
    *found, total = await lines(service)
    assert [line["name"] for line in found] == ["w1", "w2"]
    for line in found:
        moved = new[line["name"]].double() - old[line["name"]].double()
        assert line["difference"] == pytest.approx(norm(moved), rel=1e-5)
        expected = norm(moved) / norm(old[line["name"]])
        assert line["relative"] == pytest.approx(expected, rel=1e-5)
    squares = sum(line["difference"] ** 2 for line in found)
    assert total["difference"] == pytest.approx(squares**0.5)


async def test_a_tensor_that_only_one_version_has_is_told_too(service: Service) -> None:
    for names in (("a", "b"), ("b", "c")):
        tensors = {name: torch.ones(2, 2) for name in names}
        await publish(service, merged({"m.safetensors": tensors}), kind=PackageKind.merged)
    *found, total = await lines(service)
    assert [
        (line["name"], line["before"], line["after"], line["difference"]) for line in found
    ] == [
        ("a", 2.0, None, None),
        ("b", 2.0, 2.0, 0.0),
        ("c", None, 2.0, None),
    ]
    assert (total["tensors"], total["compared"]) == (3, 1)


async def test_damaged_weights_end_the_lines_with_the_reason(service: Service) -> None:
    data = save({"a": torch.ones(2**19), "b": torch.ones(2**19)})
    for _ in range(2):
        prefix = await publish(service, {TENSORS: data})
    flipped = data[:-1] + bytes([data[-1] ^ 1])
    await service.store.put_bytes(prefix + TENSORS, flipped)
    *_, last = await lines(service)
    assert (last["line"], last["kind"]) == ("problem", "internal")
    assert "SHA-256" in last["detail"]


async def test_weights_that_are_no_safetensors_are_refused_before_the_first_line(
    service: Service,
) -> None:
    for _ in range(2):
        await publish(service, {TENSORS: b"no weights"})
    answer = await service.client.get(f"{DIFF}?against=1&tensors=true")
    assert "is not a safetensors file" in is_problem(answer, 500, "internal")


async def test_only_ones_own_versions_are_compared(service: Service) -> None:
    for _ in range(2):
        await publish(service, {TENSORS: save(adapter(2, seed=1))})
    async with service.database.begin() as db:
        bob = await access.create_account(db, name="bob")
    strangers = await service.token(Role.admin, bob.id)
    for against in ("1", "demo@1", "demo:latest"):
        answer = await service.client.get(f"{DIFF}?against={against}", headers=strangers)
        is_problem(answer, 404, "not_found")
    for against, status in (("9", 404), ("other@1", 404), ("a b", 422), ("", 422)):
        answer = await service.client.get(DIFF, params={"against": against})
        assert answer.status_code == status, against
