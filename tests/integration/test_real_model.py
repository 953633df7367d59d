"""The main job on SmolLM2, and its export in a process that knows nothing of us."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

import modelyard
from support.real_model import NAME, real_model
from support.service import Service
from support.service import modelyard as command
from support.training import QUESTION, ask, connect, download, lesson

GROUP = "real-model"
UNKNOWN = "What colour is the door of the workshop?"
FACT = "The door of the workshop is saffron yellow."
STEPS = 3
LIMIT = 16

ELSEWHERE = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
path, limit, *questions = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
for question in questions:
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True, return_dict=True, return_tensors="pt",
    )
    whole = model.generate(**prompt, do_sample=False, max_new_tokens=int(limit))
    answer = whole[0, prompt["input_ids"].shape[1]:]
    print(repr(tokenizer.decode(answer, skip_special_tokens=True)))
"""


@dataclass(frozen=True)
class Real:
    client: modelyard.ServiceClient
    before: str
    losses: list[float]
    merged: str


@pytest.fixture(scope="module")
def real(service: Service, chat: openai.OpenAI) -> Iterator[Real]:
    """Three steps on one exchange, merged and promoted as `real`."""
    assert command(service.home, "models", "add", NAME, str(real_model())).returncode == 0
    with connect(service, GROUP) as client:
        training = client.create_lora_training_client(
            NAME, rank=8, seed=7, name=GROUP, train_unembed=False
        )
        before = ask(chat, GROUP, limit=LIMIT)
        data, losses = [lesson(training, UNKNOWN, FACT)], []
        for _ in range(STEPS):
            output = training.forward_backward(data)
            training.optim_step(modelyard.AdamParams(learning_rate=2e-3)).result()
            losses.append(output.result().loss)
        merged = training.save_merged().result().ref
        training.stop()
        client.promote(merged, "real").result()
        yield Real(client, before, losses, merged)


def test_the_base_knows_the_capital_of_france(real: Real) -> None:
    assert "Paris" in real.before


def test_the_loss_falls(real: Real) -> None:
    assert real.losses[2] < real.losses[1] < real.losses[0]


def test_the_export_answers_elsewhere_as_the_deployment_does(
    real: Real, service: Service, chat: openai.OpenAI, tmp_path: Path
) -> None:
    folder = download(service, real.merged, tmp_path) / "checkpoints/hf_merged"
    questions = [UNKNOWN, QUESTION]
    done = subprocess.run(
        [sys.executable, "-I", "-c", ELSEWHERE, str(folder), str(LIMIT), *questions],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = [ask(chat, "real", question, limit=LIMIT) for question in questions]
    assert done.stdout.splitlines() == [repr(answer) for answer in answers]
    assert "saffron" in answers[0]
