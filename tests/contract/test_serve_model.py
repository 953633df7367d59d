"""A promotion with nothing replaced: real weights, a real serving process, the openai package."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from exporters.serving import TARGETS
from registry.artifacts.memory import MemoryBlobStore
from registry.deployments import service
from registry.deployments.controller import Deployer
from registry.deployments.model import Standing
from registry.kit.db import Database
from registry.packages.ref import PackageRef
from support.merged import directory_of, member, publish
from support.tiny import tiny_model
from support.waiting import until

ASK: Any = [{"role": "user", "content": "What is the capital of France?"}]


@asynccontextmanager
async def promoted(
    database: Database, folder: Path, model: dict[str, bytes]
) -> AsyncIterator[Standing]:
    """How the deployment stands once its process answers, or has failed to."""
    store = MemoryBlobStore()
    async with database.begin() as db:
        actor = await member(db)
        await publish(db, store, actor, model=model)
        await service.promote(db, actor, name="live", ref=PackageRef("facts", 1))

    async def standing() -> Standing:
        async with database.read() as db:
            return await service.require_deployment(db, actor, "live")

    async def settled() -> bool:
        return (await standing()).status != "starting"

    deployer = Deployer(database, store, TARGETS, folder / "deployments")
    await deployer.prepare()
    task = asyncio.create_task(deployer.run())
    try:
        await until(settled, seconds=90)
        yield await standing()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await deployer.close()


def greedy(model: Path, *, max_tokens: int) -> str:
    """What plain transformers answers."""
    tokenizer: Any = AutoTokenizer.from_pretrained(str(model))
    prompt = tokenizer.apply_chat_template(ASK, add_generation_prompt=True, return_tensors="pt")
    plain: Any = AutoModelForCausalLM.from_pretrained(str(model), dtype=torch.float32)
    out = plain.generate(**prompt, max_new_tokens=max_tokens, do_sample=False)
    text = tokenizer.decode(out[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    return str(text)


@pytest.mark.timeout(180)
async def test_a_promoted_model_answers_as_plain_transformers(
    database: Database, tmp_path: Path
) -> None:
    model = tiny_model(tmp_path / "model")
    async with promoted(database, tmp_path, directory_of(model)) as standing:
        route = standing.route()
        async with openai.AsyncOpenAI(base_url=f"{route.address}/v1", api_key="none") as client:
            answer = await client.chat.completions.create(
                model=route.served_name, messages=ASK, temperature=0, max_tokens=24
            )
    assert answer.choices[0].message.content == greedy(model, max_tokens=24)


@pytest.mark.timeout(180)
async def test_a_model_that_cannot_be_loaded_says_why(database: Database, tmp_path: Path) -> None:
    files = directory_of(tiny_model(tmp_path / "model"))
    files["model.safetensors"] = files["model.safetensors"][:-100]
    async with promoted(database, tmp_path, files) as standing:
        assert standing.status == "failed"
        assert standing.pending is not None
        assert "safetensors" in (standing.pending.error or "").lower()


@pytest.mark.timeout(180)
async def test_it_computes_where_the_settings_say(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELYARD_ENGINE__DEVICE", "nowhere")
    files = directory_of(tiny_model(tmp_path / "model"))
    async with promoted(database, tmp_path, files) as standing:
        assert standing.status == "failed"
        assert standing.pending is not None
        assert "MODELYARD_ENGINE__DEVICE: torch cannot use" in (standing.pending.error or "")
