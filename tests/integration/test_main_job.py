"""The whole life of a checkpoint through the client: train, save, resume, merge, promote, chat."""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

import modelyard
from support.service import Service, serving
from support.service import modelyard as command
from support.tiny import END
from support.training import (
    ADAM,
    ask,
    batch,
    chat_client,
    connect,
    download,
    eventually,
    get,
    prompt,
    step,
)

GROUP = "main-job"
TARGETS = ("q_proj", "v_proj", "down_proj")
SCHEDULE = [batch(seed) for seed in (1, 2)] * 5


@dataclass(frozen=True)
class Life:
    """What one session left behind: version 1 is its state, version 2 its merged weights."""

    client: modelyard.ServiceClient
    session: modelyard.SessionInfo
    losses: list[float]
    more_losses: list[float]


def train(
    training: modelyard.TrainingClient, schedule: Sequence[list[modelyard.Datum]]
) -> list[float]:
    return [step(training, data) for data in schedule]


def submit(
    training: modelyard.TrainingClient, data: list[modelyard.Datum]
) -> modelyard.APIFuture[modelyard.ForwardBackwardOutput]:
    """A step that is not waited for."""
    output = training.forward_backward(data)
    training.optim_step(ADAM)
    return output


@pytest.fixture(scope="module")
def life(service: Service) -> Iterator[Life]:
    with connect(service, GROUP) as client:
        training = client.create_lora_training_client(
            "tiny", rank=3, alpha=12, seed=7, targets=TARGETS, name="main-job"
        )
        losses = train(training, SCHEDULE[:8])
        training.save_state("half way", metadata={"run": "a"}, metrics={"score": 0.5}).result()
        more_losses = train(training, SCHEDULE[8:])
        training.save_merged("the end").result()
        yield Life(client, training.stop(), losses, more_losses)


@pytest.fixture(scope="module")
def merged_again(life: Life) -> modelyard.VersionInfo:
    """Version 3, made of version 1."""
    return life.client.merge(f"{GROUP}@1").result()


def test_the_loss_falls_and_every_step_is_measured(life: Life, service: Service) -> None:
    assert life.losses[-1] < life.losses[-3] < life.losses[1]
    rows = get(service, "/v1/sessions/main-job/metrics")["data"]
    assert [row["step"] for row in rows] == list(range(1, 11))
    assert [row["metrics"]["loss"] for row in rows] == life.losses + life.more_losses
    assert {row["metrics"]["tokens"] for row in rows} == {55.0}
    assert all(row["metrics"]["grad_norm"] > 0 for row in rows)


def test_versions_carry_what_was_said_and_measured(life: Life) -> None:
    state, merged = (life.client.get_version(f"{GROUP}@{number}") for number in (1, 2))
    assert (state.kind, state.resumable, state.promotable) == ("state", True, False)
    assert (merged.kind, merged.resumable, merged.promotable) == ("merged", False, True)
    assert (state.step, merged.step) == (8, 10)
    assert (state.description, state.metadata) == ("half way", {"run": "a"})
    assert (state.metrics["score"], state.metrics["loss"]) == (0.5, life.losses[-1])
    assert merged.metrics["loss"] == life.more_losses[-1]
    assert (state.parent, merged.parent) == (None, f"{GROUP}@1")
    assert state.session == merged.session == life.session.id
    assert (state.usage["train"], merged.usage["train"]) == (8 * 55, 10 * 55)


def test_a_stopped_session_takes_nothing_more(life: Life) -> None:
    assert (life.session.status, life.session.step) == ("stopped", 10)
    with pytest.raises(modelyard.SessionNotRunning, match="stopped"):
        life.client.get_training_client(life.session.id)
    with pytest.raises(modelyard.ModelyardError, match="stopped"):
        life.client.create_sampling_client(session="main-job").sample(prompt([5])).result()


def test_resuming_gives_the_same_losses_to_the_last_bit(life: Life) -> None:
    resumed = life.client.create_training_client_from_state_with_optimizer(f"{GROUP}@1")
    assert train(resumed, SCHEDULE[8:]) == life.more_losses
    assert resumed.get_info().step == 10
    resumed.stop()


def test_resuming_weights_alone_differs_after_a_step(life: Life) -> None:
    resumed = life.client.create_training_client_from_state(f"{GROUP}@1")
    first, second = train(resumed, SCHEDULE[8:])
    assert first == life.more_losses[0]
    assert second != life.more_losses[1]
    resumed.stop()


def test_loading_a_state_takes_a_session_back(life: Life) -> None:
    resumed = life.client.create_training_client_from_state_with_optimizer(f"{GROUP}@1")
    train(resumed, SCHEDULE[:1])
    resumed.load_state_with_optimizer(f"{GROUP}@1").result()
    assert train(resumed, SCHEDULE[8:]) == life.more_losses
    resumed.stop()


def test_resuming_adopts_what_the_version_was_trained_with(life: Life) -> None:
    resumed = life.client.create_training_client_from_state_with_optimizer(f"{GROUP}@1")
    info = resumed.get_info()
    assert (info.base_model, info.parent, info.group) == ("tiny", f"{GROUP}@1", GROUP)
    assert info.lora == life.session.lora
    assert (info.lora["rank"], info.lora["alpha"]) == (3, 12)
    assert info.lora["targets"] == list(TARGETS)
    saved = resumed.save_weights_for_sampler(group=GROUP).result()
    assert life.client.get_version(saved.ref).parent == f"{GROUP}@1"
    resumed.stop()


def test_a_pending_gradient_is_part_of_the_state(client: modelyard.ServiceClient) -> None:
    training = client.create_lora_training_client("tiny", rank=4, seed=7)
    training.forward_backward(SCHEDULE[0])
    saved = training.save_state().result()
    training.optim_step(ADAM)
    resumed = client.create_training_client_from_state_with_optimizer(saved.ref)
    resumed.optim_step(ADAM)
    assert step(resumed, SCHEDULE[1]) == step(training, SCHEDULE[1])
    training.stop()
    resumed.stop()


async def test_results_can_be_awaited(training: modelyard.TrainingClient) -> None:
    output = await training.forward_backward(batch())
    done = await training.optim_step(ADAM)
    assert (done.step, done.metrics["loss"]) == (1, output.loss)


def test_calls_run_in_the_order_they_were_made(training: modelyard.TrainingClient) -> None:
    """Nothing is awaited before everything is submitted."""
    outputs, steps = [], []
    for data in SCHEDULE:
        outputs.append(training.forward_backward(data))
        steps.append(training.optim_step(ADAM))
    assert [done.result().step for done in steps] == list(range(1, 11))
    losses = [done.result().metrics["loss"] for done in steps]
    assert losses == [output.result().loss for output in outputs]


def test_numbers_of_the_client_stand_beside_the_sessions(
    training: modelyard.TrainingClient,
) -> None:
    loss = step(training, batch())
    training.log({"reward": 1.5}).result()
    training.log({"reward": 2.5}, step=7).result()
    one, seven = training.metrics()
    assert (one.step, one.metrics["loss"], one.metrics["reward"]) == (1, loss, 1.5)
    assert (seven.step, seven.metrics) == (7, {"reward": 2.5})


def test_versions_are_listed_by_kind_and_by_page(
    life: Life, merged_again: modelyard.VersionInfo, service: Service
) -> None:
    path = f"/v1/groups/{GROUP}/versions"
    states = get(service, path, kind="state")["data"]
    assert [(version["ref"], version["kind"]) for version in states] == [(f"{GROUP}@1", "state")]
    found: list[int] = []
    cursor = None
    while True:
        page = get(service, path, limit=1, **({"cursor": cursor} if cursor else {}))
        found += [version["version"] for version in page["data"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == sorted(found, reverse=True)
    assert {1, 2, 3} <= set(found)
    assert [version.version for version in life.client.list_versions(GROUP)] == found


def test_files_arrive_as_the_manifest_says(life: Life, service: Service, tmp_path: Path) -> None:
    folder = download(service, f"{GROUP}@1", tmp_path / "state")
    files = get(service, f"/v1/groups/{GROUP}/versions/1/files")["data"]
    found = {str(file.relative_to(folder)): file for file in folder.rglob("*") if file.is_file()}
    assert found.keys() == {file["path"] for file in files}
    assert {path.split("/")[0] for path in found} == {"checkpoints", "state"}
    for file in files:
        content = found[file["path"]].read_bytes()
        assert len(content) == file["size"]
        assert hashlib.sha256(content).hexdigest() == file["sha256"]


def test_no_file_of_any_kind_is_a_pickle(
    life: Life, merged_again: modelyard.VersionInfo, service: Service
) -> None:
    files = [
        file["path"]
        for number in (1, 2, 3)
        for file in get(service, f"/v1/groups/{GROUP}/versions/{number}/files")["data"]
    ]
    assert {os.path.splitext(path)[1] for path in files} <= {".json", ".safetensors", ".jinja"}
    merged = [path for path in files if path.startswith("checkpoints/hf_merged/")]
    assert {"config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json"} <= {
        path.rpartition("/")[2] for path in merged
    }


def test_a_damaged_file_is_never_delivered(
    service: Service,
    client: modelyard.ServiceClient,
    training: modelyard.TrainingClient,
    tmp_path: Path,
) -> None:
    saved = training.save_weights_for_sampler().result()
    (stored,) = (service.home / "objects").glob(f"*/{saved.group}/*/checkpoints/hf/*.safetensors")
    content = bytearray(stored.read_bytes())
    content[-1] ^= 1
    stored.write_bytes(content)
    done = command(service.home, "pull", saved.ref, str(tmp_path / "damaged"))
    assert done.returncode != 0
    assert not list((tmp_path / "damaged").rglob("adapter_model.safetensors"))
    with pytest.raises(modelyard.ModelyardError):
        client.create_sampling_client(version=saved.ref).sample(prompt([5])).result()


def test_a_state_is_merged_as_it_was_saved(life: Life, merged_again: modelyard.VersionInfo) -> None:
    assert (merged_again.kind, merged_again.promotable) == ("merged", True)
    assert (merged_again.parent, merged_again.step) == (f"{GROUP}@1", 8)
    assert merged_again.description == "half way"


def test_what_is_promoted_answers_and_a_rollback_brings_it_back(
    life: Life, merged_again: modelyard.VersionInfo, service: Service, chat: openai.OpenAI
) -> None:
    client, name = life.client, "main-job-live"
    first = client.promote(f"{GROUP}@2", name).result()
    assert (first.status, first.version, first.previous) == ("active", f"{GROUP}@2", None)
    answer = ask(chat, name)
    assert answer == ask(chat, f"{GROUP}@2")
    second = client.promote(merged_again.ref, name).result()
    assert (second.version, second.previous) == (merged_again.ref, f"{GROUP}@2")
    assert ask(chat, name) == ask(chat, f"{GROUP}@1") != answer
    back = client.rollback(name).result()
    assert (back.version, back.previous) == (f"{GROUP}@2", merged_again.ref)
    assert ask(chat, name) == answer
    events = get(service, f"/v1/deployments/{name}/history")["data"]
    moves = [(event["kind"], event["to"]) for event in reversed(events)]
    assert [move for move in moves if move[0] != "activate"] == [
        ("promote", f"{GROUP}@2"),
        ("promote", merged_again.ref),
        ("rollback", f"{GROUP}@2"),
    ]


def half_a_life(service: Service) -> list[float]:
    """A session `kept`, a deployment `kept-live`, and a gradient that waits for its step."""
    with connect(service, "kept") as client:
        training = client.create_lora_training_client("tiny", rank=4, seed=7, name="kept")
        losses = train(training, SCHEDULE[:4])
        client.promote(training.save_merged().result().ref, "kept-live").result()
        return [*losses, training.forward_backward(SCHEDULE[4]).result().loss]


def test_a_restart_loses_nothing(
    client: modelyard.ServiceClient, training: modelyard.TrainingClient, tiny: Path, tmp_path: Path
) -> None:
    expected, home = train(training, SCHEDULE), tmp_path / "home"
    with serving(home) as before:
        command(home, "models", "add", "tiny", str(tiny))
        losses = half_a_life(before)
        with chat_client(before) as chat:
            answer = ask(chat, "kept-live")
    with serving(home) as after, connect(after, "kept") as again:
        kept = again.get_training_client("kept")
        kept.optim_step(ADAM).result()
        assert losses + train(kept, SCHEDULE[5:]) == expected
        assert again.usage().tokens["train"] == 55 * len(SCHEDULE)
        assert [version.ref for version in again.list_versions()] == ["kept@1"]
        eventually(lambda: again.list_deployments()[0].status == "active")
        with chat_client(after) as chat:
            assert ask(chat, "kept-live") == answer
    assert not re.search("Traceback|Fatal|error", after.log.read_text())


def test_sessions_on_one_base_do_not_touch_each_other(client: modelyard.ServiceClient) -> None:
    alone = client.create_lora_training_client("tiny", rank=4, seed=7)
    expected = train(alone, SCHEDULE)
    together = [client.create_lora_training_client("tiny", rank=4, seed=s) for s in (7, 8, 7)]
    rounds = [[submit(training, data) for training in together] for data in SCHEDULE]
    one, other, again = (
        [output.result().loss for output in mine] for mine in zip(*rounds, strict=True)
    )
    assert one == again == expected != other
    for training in (alone, *together):
        training.stop()


def test_samples_beside_training_change_no_bit_of_it(client: modelyard.ServiceClient) -> None:
    alone, busy = (client.create_lora_training_client("tiny", rank=4, seed=7) for _ in range(2))
    expected = train(alone, SCHEDULE)
    sampler = client.create_sampling_client(session=alone.session_id)
    params = modelyard.SamplingParams(max_tokens=40, stop=[])
    drawn = [sampler.sample(prompt([5, 6]), params, num_samples=2) for _ in range(30)]
    assert train(busy, SCHEDULE) == expected
    lengths = [len(sample.tokens) for each in drawn for sample in each.result().sequences]
    assert lengths == [40] * 60
    alone.stop()
    busy.stop()


def test_the_tokenizer_comes_from_the_service(training: modelyard.TrainingClient) -> None:
    tokenizer = training.get_tokenizer()
    text = "The lighthouse keeper counts the ships."
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_token == END
