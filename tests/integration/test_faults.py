"""What is killed, stopped, locked or full in the middle of things loses nothing."""

import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

import modelyard
from modelyard import AdamParams, ModelInput, OperationFailed, SamplingParams
from registry.artifacts.local_incoming import INCOMING
from support.service import Service, serving
from support.service import modelyard as command
from support.training import ADAM, batch, connect, datum, download, eventually, get, prompt

QUICK = {"MODELYARD_DATABASE__BUSY_TIMEOUT_S": "1"}


@pytest.fixture(scope="module")
def own(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service of this file's own, to be ill-treated."""
    with serving(tmp_path_factory.mktemp("faults") / "home", settings=QUICK) as service:
        assert command(service.home, "models", "add", "tiny", str(tiny)).returncode == 0
        yield service


def begin(
    service: Service, group: str, name: str | None = None
) -> tuple[modelyard.ServiceClient, modelyard.TrainingClient]:
    client = connect(service, group)
    return client, client.create_lora_training_client("tiny", rank=4, seed=7, name=name)


def weights(service: Service, ref: str, folder: Path) -> dict[str, bytes]:
    """Every tensor of a state, bit for bit."""
    found = download(service, ref, folder)
    files = sorted(found.rglob("*.safetensors"))
    assert len(files) == 2
    return {
        f"{file.name} {name}": tensor.tobytes()
        for file in files
        for name, tensor in load_file(file).items()
    }


def eventful(training: modelyard.TrainingClient, group: str, kill: Any) -> list[Any]:
    """Steps, saves, and calls that fail; `kill` is called in between."""
    done: list[Any] = []
    fail = [datum([5, 6, 9999])]
    for seed in range(6):
        output = training.forward_backward(batch(seed))
        if seed == 3:
            kill()
        stepped = training.optim_step(ADAM)
        done += [output, stepped]
        if seed == 1:
            done += [training.load_state(f"{group}@1"), training.save_state("one")]
        if seed == 2:
            done += [training.forward_backward(fail)]
            done += [training.clear_gradient(), training.optim_step(AdamParams(1e-2))]
        if seed == 4:
            done += [training.forward(batch(9)), training.save_weights_for_sampler("two")]
    return [*done, training.save_state("three")]


def outcomes(calls: list[Any]) -> list[Any]:
    """What each came to; versions and ids apart, two runs of one schedule agree."""
    found: list[Any] = []
    for call in calls:
        try:
            result = call.result(timeout=120)
        except OperationFailed as error:
            found.append((error.kind, error.message.partition("@")[2]))
        else:
            found.append(getattr(result, "metrics", None) or getattr(result, "version", None))
    return found


def test_a_killed_worker_costs_its_clients_only_time(own: Service, tmp_path: Path) -> None:
    client, quiet = begin(own, "quiet")
    expected = outcomes(eventful(quiet, "quiet", lambda: None))
    other, killed = begin(own, "killed")
    found = outcomes(eventful(killed, "killed", own.kill_worker))
    assert found == expected
    assert weights(own, "killed@3", tmp_path / "k") == weights(own, "quiet@3", tmp_path / "q")
    versions = other.list_versions("killed")
    assert [(v.ref, v.kind, v.parent) for v in versions] == [
        ("killed@3", "state", "killed@2"),
        ("killed@2", "adapter", "killed@1"),
        ("killed@1", "state", None),
    ]
    used, wanted = other.usage(killed.session_id), client.usage(quiet.session_id)
    assert used.tokens == wanted.tokens
    client.close()
    other.close()


def test_a_version_that_came_later_is_not_loaded_by_a_replay(own: Service, tmp_path: Path) -> None:
    """`load_state` failed because the version was missing; when the log is replayed it is there."""
    refs = []
    for group in ("early", "early-killed"):
        client, training = begin(own, group)
        with client:
            training.forward_backward(batch(1))
            training.optim_step(ADAM)
            first = training.save_state()
            with pytest.raises(OperationFailed, match="no version"):
                training.load_state(f"{group}@2").result()
            training.forward_backward(batch(2))
            training.optim_step(ADAM).result()
            training.load_state(first.result().ref).result()
            assert training.save_state().result().version == 2
            if group == "early-killed":
                own.kill_worker()
            training.forward_backward(batch(3))
            training.optim_step(ADAM)
            refs.append(training.save_state().result().ref)
    assert weights(own, refs[0], tmp_path / "a") == weights(own, refs[1], tmp_path / "b")


def test_a_sample_asked_for_while_the_worker_is_dead_is_answered(own: Service) -> None:
    client, training = begin(own, "sampled")
    with client:
        training.forward_backward(batch(1))
        training.optim_step(ADAM).result()
        live = client.create_sampling_client(session=training.session_id)
        params = SamplingParams(max_tokens=5, temperature=0)
        before = live.sample(prompt([5, 6, 7]), params).result()
        own.kill_worker()
        after = [live.sample(ModelInput.from_ints([5, 6, 7]), params) for _ in range(4)]
        assert {tuple(each.result(120).sequences[0].tokens) for each in after} == {
            tuple(before.sequences[0].tokens)
        }
        tokens = client.usage(training.session_id).tokens
        assert tokens["prefill"] + tokens["cached_prefill"] == 15
        assert tokens["sample"] == 5 * len(before.sequences[0].tokens)


def test_a_locked_database_is_waited_for(own: Service) -> None:
    client, training = begin(own, "locked")
    with client:
        training.forward_backward(batch(1)).result()
        with closing(sqlite3.connect(own.home / "modelyard.db", isolation_level=None)) as thief:
            thief.execute("BEGIN IMMEDIATE")
            step = training.optim_step(ADAM)
            time.sleep(4)  # longer than anybody's patience with a lock
            thief.execute("ROLLBACK")
        assert step.result(60).step == 1
        assert training.get_info().status == "running"


def test_storage_that_fails_fails_the_save_alone(own: Service) -> None:
    client, training = begin(own, "full")
    with client:
        training.forward_backward(batch(1))
        training.optim_step(ADAM).result()
        objects, aside = own.home / "objects", own.home / "aside"
        objects.rename(aside)
        objects.write_text("no folder any more")
        with pytest.raises(OperationFailed, match="storage: ") as caught:
            training.save_state().result()
        objects.unlink()
        aside.rename(objects)
        assert caught.value.kind == "unavailable"
        assert training.save_state().result().ref == "full@1"


def test_a_damaged_version_is_refused_and_the_session_goes_on(own: Service) -> None:
    client, training = begin(own, "damaged")
    with client:
        training.forward_backward(batch(1))
        training.optim_step(ADAM).result()
        ref = training.save_state().result().ref
        path = next(own.home.glob("objects/*/damaged/*/state/*.safetensors"))
        path.write_bytes(path.read_bytes()[:-1] + b"\xff")
        with pytest.raises(OperationFailed, match="SHA-256"):
            training.load_state_with_optimizer(ref).result()
        with pytest.raises(modelyard.ModelyardError, match="SHA-256"):
            client.create_training_client_from_state_with_optimizer(ref)
        assert training.forward(batch(1)).result().loss > 0


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGKILL])
def test_a_stop_in_the_middle_of_saves_leaves_each_whole_or_to_be_done(
    tiny: Path, tmp_path: Path, name: signal.Signals
) -> None:
    home = tmp_path / "home"
    with serving(home) as service:
        assert command(home, "models", "add", "tiny", str(tiny)).returncode == 0
        client, training = begin(service, "saved", name="saver")
        training.forward_backward(batch(1))
        training.optim_step(ADAM).result()
        saves = [training.save_merged() for _ in range(4)]
        saves[0].result()
        eventually(lambda: training.get_info().last_number == 6)
        assert service.stop(name) == (0 if name == signal.SIGINT else -name)
        client.close()
    if name == signal.SIGINT:  # who was killed leaves what it wrote aside to a collection
        aside = (home / "objects" / INCOMING).rglob("*")
        assert [path for path in aside if path.is_file()] == []
    with serving(home) as service, connect(service, "saved") as client:
        eventually(lambda: len(client.list_versions("saved")) == 4)
        training = client.get_training_client("saver")
        assert training.forward(batch(1)).result().loss > 0
        assert [version.version for version in client.list_versions("saved")] == [4, 3, 2, 1]
        files = [
            {file["path"]: file["sha256"] for file in listed(service, f"saved/versions/{number}")}
            for number in (1, 2, 3, 4)
        ]
        assert all(each == files[0] for each in files)
        download(service, "saved@4", tmp_path / "four")
        used = client.usage(training.session_id).tokens["train"]
        assert used == 2 * sum(d.model_input.length for d in batch(1))


def listed(service: Service, place: str) -> list[dict[str, Any]]:
    files: list[dict[str, Any]] = get(service, f"/v1/groups/{place}/files")["data"]
    return files


def test_a_session_that_is_stopping_ends_though_its_service_is_stopped_first(
    tiny: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    with serving(home) as service:
        assert command(home, "models", "add", "tiny", str(tiny)).returncode == 0
        client, training = begin(service, "ending", name="ending")
        training.save_merged()
        training.save_weights_and_get_sampling_client()
        training.forward(batch(1)).result()
        stopping = threading.Thread(target=quietly, args=(training.stop,))
        stopping.start()
        eventually(lambda: get(service, "/v1/sessions/ending")["status"] != "running")
        service.stop()
        client.close()
        stopping.join()
    with serving(home) as service, connect(service, "ending") as client:
        eventually(lambda: get(service, "/v1/sessions/ending")["status"] == "stopped")
        assert len(client.list_versions("ending")) == 1
        assert not list((home / "objects").glob("*/sessions/*/weights"))


def quietly(call: Any) -> None:
    try:
        call()
    except modelyard.ModelyardError:
        return


def test_a_killed_serve_takes_its_deployments_with_it_and_brings_them_back(
    tiny: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    with serving(home) as service:
        assert command(home, "models", "add", "tiny", str(tiny)).returncode == 0
        client, training = begin(service, "served")
        with client:
            ref = training.save_merged().result().ref
            client.promote(ref, "served").result(120)
        children = processes(home)
        assert len(children) == 2
        service.process.kill()
        service.process.wait()
        eventually(lambda: not processes(home))
    with serving(home) as service:
        eventually(lambda: get(service, "/v1/deployments/served")["status"] == "active", seconds=60)
    assert not processes(home)


def processes(home: Path) -> list[int]:
    """Those of ours that live, of this home, but for `serve` itself."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            told = (place / "environ").read_bytes()
            line = (place / "cmdline").read_bytes()
        except OSError:
            continue
        is_ours = f"MODELYARD_HOME={home}".encode() in told.split(b"\0") and b"session" in line
        if is_ours and b"serve" not in line.split(b"\0"):
            found.append(int(place.name))
    return found
