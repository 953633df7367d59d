"""Deleting versions as users do it: the client, the command line, real processes."""

import json
from pathlib import Path

import pytest

import modelyard
from support.service import Service
from support.service import modelyard as command
from support.training import batch, step


def run(service: Service, *words: str, code: int = 0) -> str:
    done = command(service.home, *words)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_what_a_live_session_began_from_stays_until_it_is_stopped(
    service: Service,
    client: modelyard.ServiceClient,
    training: modelyard.TrainingClient,
    group: str,
) -> None:
    first = training.save_state().result().ref
    resumed = client.create_training_client_from_state_with_optimizer(first)
    name = resumed.get_info().name
    said = run(service, "rm", first, "--yes", code=4)
    assert said == f"modelyard: {first} is not deleted: it is held by session {name}\n"
    with pytest.raises(modelyard.ConflictError, match=f"held by session {name}"):
        client.delete_version(first)
    assert [hold.name for hold in client.list_holds(first)] == [name]
    resumed.stop()
    run(service, "rm", first, "--yes", "--why", "superseded")
    assert client.list_versions(group) == []
    with pytest.raises(modelyard.ConflictError, match="was deleted at"):
        client.create_training_client_from_state(first)
    assert client.restore_version(first).deleted_at is None
    assert [each.ref for each in client.list_versions(group)] == [first]


def test_a_purged_version_is_a_tombstone_without_files(
    client: modelyard.ServiceClient, training: modelyard.TrainingClient, tmp_path: Path
) -> None:
    first = training.save_state().result().ref
    training.stop()
    with pytest.raises(modelyard.ConflictError):
        client.purge_version(first)
    client.delete_version(first)
    purged = client.purge_version(first)
    assert purged.purged_at is not None
    assert purged.freed == purged.size
    with pytest.raises(modelyard.ConflictError):
        client.pull(first, tmp_path / "out").result()
    with pytest.raises(modelyard.ConflictError):
        client.restore_version(first)


def test_what_a_deployment_serves_stays(
    service: Service,
    client: modelyard.ServiceClient,
    training: modelyard.TrainingClient,
    group: str,
) -> None:
    step(training, batch(1))
    first, second = (training.save_merged().result().ref for _ in range(2))
    client.promote(first, group).result(120)
    assert f"held by deployment {group}" in run(service, "rm", first, "--yes", code=4)
    client.promote(second, group).result(120)
    for ref in (first, second):  # the first is kept warm for a rollback
        assert f"held by deployment {group}" in run(service, "rm", ref, "--yes", code=4)


def test_a_hold_and_a_policy_by_command(
    service: Service,
    client: modelyard.ServiceClient,
    training: modelyard.TrainingClient,
    group: str,
) -> None:
    refs = [training.save_weights_for_sampler().result().ref for _ in range(3)]
    run(service, "hold", refs[0], "--why", "in the paper")
    assert "(in the paper)" in run(service, "rm", refs[0], "--yes", code=4)
    run(service, "retention", "set", group, "--keep-last", "1")
    run(service, "retention", "apply", group, "--yes")  # unless the keeper has been here by now
    assert [each.ref for each in client.list_versions(group)] == [refs[2], refs[0]]
    run(service, "retention", "clear", group)
    client.release_version(refs[0])
    purged = json.loads(run(service, "rm", refs[0], "--yes", "--purge", "--json"))
    assert purged["freed"] == purged["size"]
    assert f"{refs[0]} was deleted at" in run(service, "versions", "files", refs[0], code=4)
    kinds = [move.kind for move in client.history()]
    assert kinds == ["purged", "deleted", "hold", "deleted", "hold"]
