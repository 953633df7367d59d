"""What is decided about versions, as users do it: the client, the command line, real processes."""

import json

import modelyard
from modelyard import SamplingParams
from support.service import Service
from support.service import modelyard as command
from support.training import batch, prompt, step


def run(service: Service, *words: str) -> str:
    done = command(service.home, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_alias_stands_for_a_version_wherever_one_is_read(
    service: Service,
    client: modelyard.ServiceClient,
    training: modelyard.TrainingClient,
    group: str,
) -> None:
    first = training.save_state("first").result()
    step(training, batch(1))
    second = training.save_state("second").result()
    client.set_alias("prod", first.ref, why="a start")
    drawn = [
        client.create_sampling_client(version=ref)
        .sample(prompt([5, 6]), SamplingParams(max_tokens=4, temperature=0))
        .result()
        for ref in (f"{group}:prod", first.ref)
    ]
    assert drawn[0].sequences[0].tokens == drawn[1].sequences[0].tokens
    resumed = client.create_training_client_from_state_with_optimizer(f"{group}:prod")
    assert resumed.get_info().parent == first.ref
    resumed.stop()
    run(service, "alias", "set", "prod", second.ref, "--from", "1", "--why", "better")
    assert client.get_version(f"{group}:prod").ref == second.ref == client.latest_version().ref
    told = client.history(alias="prod")
    assert [(move.before, move.after, move.why) for move in told] == [
        (first.ref, second.ref, "better"),
        (None, first.ref, "a start"),
    ]
    assert client.history(alias="prod", at=told[1].at)[0].after == first.ref
    assert told[1].at is not None
    (then,) = json.loads(run(service, "history", group, "--at", told[1].at.isoformat(), "--json"))
    assert then["to"] == first.ref


def test_what_is_said_of_a_version_is_changed_and_asked_for(
    service: Service,
    client: modelyard.ServiceClient,
    training: modelyard.TrainingClient,
    group: str,
) -> None:
    for name in ("one", "two"):
        training.save_weights_for_sampler(name).result()
    client.edit_version(f"{group}@1", tags=["best"], description="the golden one")
    run(service, "versions", "edit", f"{group}@1", "--tag", "seen", "--stage", "staging")
    run(service, "approve", f"{group}@1", "--why", "evaluated")
    found = client.get_version(f"{group}@1")
    assert (found.tags, found.stage, found.approval) == (["best", "seen"], "staging", "approved")
    assert [each.ref for each in client.list_versions(tag="best", text="GOLDEN")] == [found.ref]
    words = ("--approval", "approved", "--since", "2020-01-01", "--json")
    (row,) = json.loads(run(service, "versions", "list", group, *words))
    assert row["ref"] == found.ref
    assert client.reject(found.ref, "no").approval == "rejected"
    assert [move.kind for move in client.history()] == ["approval", "approval", "stage"]
    assert [each.ref for each in client.list_aliases()] == []


def test_lineage_and_bytes_are_shown(
    service: Service,
    client: modelyard.ServiceClient,
    training: modelyard.TrainingClient,
    group: str,
) -> None:
    state = training.save_state().result()
    merged = client.merge(state.ref).result(60)
    assert [node.ref for node in client.lineage(state.ref).nodes] == [state.ref, merged.ref]
    assert state.ref in run(service, "lineage", merged.ref)
    found = client.verify(merged.ref).result(60)
    assert (found.intact, len(found.files) > 2) == (True, True)
    assert json.loads(run(service, "verify", f"{group}:latest", "--json"))["intact"] is True
