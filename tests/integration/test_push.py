"""Weights from outside in the real service: what PEFT has made is sampled, merged and served."""

import signal
import subprocess
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

import modelyard
from support.faulty import Once, Proxied, kill, proxy
from support.model_files import change_json
from support.s3 import S3Server
from support.service import MODELYARD, Service, environment, serving
from support.service import modelyard as modelyard_command
from support.training import (
    ask,
    batch,
    chat_client,
    connect,
    get,
    prompt,
    step,
)

# PEFT asks transformers by a name that goes.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

PROMPT = [5, 17, 200, 33, 8, 91]


def peft_adapter(base: Path, target: Path) -> Any:
    """A random adapter that PEFT itself has made and saved; the model with it."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM"
    )
    with_adapter = peft.get_peft_model(model, config)
    for name, weight in with_adapter.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.2)
    with_adapter.save_pretrained(target)
    change_json(target / "adapter_config.json", base_model_name_or_path="tiny")
    return with_adapter.eval()


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(torch.tensor([PROMPT])).logits[0]
    return found


def test_an_adapter_of_peft_samples_and_merges_as_in_peft(
    client: modelyard.ServiceClient, tiny: Path, group: str, tmp_path: Path
) -> None:
    model = peft_adapter(tiny, tmp_path / "peft")
    pushed = client.push(tmp_path / "peft", group).result()
    assert (pushed.kind, pushed.lora["rank"], pushed.lora["alpha"]) == ("adapter", 4, 8.0)
    sampler = client.create_sampling_client(version=pushed.ref)
    found = sampler.compute_logprobs(prompt(PROMPT)).result()
    wanted = logits(model).log_softmax(-1)[range(len(PROMPT) - 1), PROMPT[1:]]
    assert np.allclose(np.array(found[1:], float), wanted.numpy(), atol=1e-4)
    merged = client.merge(pushed.ref).result()
    client.pull(merged.ref, tmp_path / "merged").result()
    whole = AutoModelForCausalLM.from_pretrained(
        tmp_path / "merged" / "checkpoints" / "hf_merged", dtype=torch.float32
    )
    assert (logits(whole) - logits(model)).abs().max() < 1e-4


def test_a_pushed_adapter_is_trained_on(
    client: modelyard.ServiceClient, tiny: Path, group: str, tmp_path: Path
) -> None:
    peft_adapter(tiny, tmp_path / "peft")
    pushed = client.push(tmp_path / "peft", group).result()
    training = client.create_training_client_from_state(pushed.ref)
    assert step(training, batch(1)) > 0
    saved = training.save_state().result().ref
    assert client.get_version(saved).parent == pushed.ref
    training.stop()


def test_a_model_that_peft_has_merged_is_served(
    service: Service, tiny: Path, group: str, tmp_path: Path
) -> None:
    model = peft_adapter(tiny, tmp_path / "peft")
    model.merge_and_unload().save_pretrained(tmp_path / "merged")
    with connect(service, group) as client:
        pushed = client.push(tmp_path / "merged", base_model="tiny").result()
        assert (pushed.kind, pushed.promotable) == ("merged", True)
        client.promote(pushed.ref, "pushed").result()
    with chat_client(service) as chat:
        assert isinstance(ask(chat, "pushed"), str)


def test_a_state_that_was_pulled_is_pushed_and_goes_on_where_it_was(
    client: modelyard.ServiceClient, training: modelyard.TrainingClient, tmp_path: Path
) -> None:
    step(training, batch(1))
    saved = client.get_version(training.save_state().result().ref)
    client.pull(saved.ref, tmp_path / "state").result()
    pushed = client.push(tmp_path / "state", "brought-back").result()
    assert (pushed.kind, pushed.digest, pushed.step) == ("state", saved.digest, 1)
    resumed = client.create_training_client_from_state_with_optimizer(pushed.ref)
    assert step(resumed, batch(2)) == step(training, batch(2))
    resumed.stop()


def test_a_service_that_is_killed_while_it_commits_goes_on_when_it_is_asked(
    minio: S3Server, tiny: Path, tmp_path: Path
) -> None:
    home, bucket = tmp_path / "home", minio.fresh_bucket()
    peft_adapter(tiny, tmp_path / "peft")
    settings = {
        "MODELYARD_OBJECTS__ENDPOINT": minio.endpoint,
        "MODELYARD_OBJECTS__BUCKET": bucket.name,
    }
    victim: Future[int] = Future()
    uploads = "/v1/groups/facts/uploads"
    with proxy(minio.endpoint, Once(reads_an_object, kill(victim))) as url:
        watched = {**settings, "MODELYARD_OBJECTS__ENDPOINT": url}
        with serving(home, settings=watched) as service:
            assert modelyard_command(home, "models", "add", "tiny", str(tiny)).returncode == 0
            with begin_push(home, tmp_path / "peft") as first:
                victim.set_result(service.process.pid)
                assert service.process.wait(60) == -signal.SIGKILL
                first.kill()
    with serving(home, settings=settings) as service:
        assert states(service, uploads) == ["committing"]
        with begin_push(home, tmp_path / "peft") as second:
            said, _ = second.communicate(timeout=120)
        assert (second.returncode, said) == (0, b"facts@1\n")
        assert states(service, uploads) == ["committed"]
        verified = modelyard_command(home, "verify", "facts@1", settings=settings)
        assert verified.returncode == 0
        assert len(get(service, "/v1/groups/facts/versions")["data"]) == 1


def reads_an_object(request: Proxied) -> bool:
    """A commit does, and what goes before it writes alone."""
    return request.command == "GET" and request.path.partition("?")[0].endswith(".safetensors")


def begin_push(home: Path, directory: Path) -> subprocess.Popen[bytes]:
    command = [*MODELYARD, "push", str(directory), "facts"]
    return subprocess.Popen(command, env=environment(home), stdout=subprocess.PIPE)


def states(service: Service, place: str) -> list[str]:
    return [each["state"] for each in get(service, place)["data"]]
