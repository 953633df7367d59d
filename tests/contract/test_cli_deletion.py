"""`rm`, `restore`, `hold` and `retention` as their users see them."""

import io
from typing import Any

import pytest

from support.commands import Scripted, refusal

FOUND = {
    **{"ref": "facts@2", "group": "facts", "version": 2, "size": 3 * 2**20, "revision": 4},
    **{"deleted_at": None, "purge_at": None, "freed": None},
}
GONE = {**FOUND, "revision": 5, "deleted_at": "2030-01-01T00:00:00Z"}
GONE["purge_at"] = "2030-01-08T00:00:00Z"
TWO = "/v1/groups/facts/versions/2"
PLAN = {
    **{"group": "facts", "dry_run": True, "cut": False, "policy": {}, "warning": None},
    **{"kept": {"versions": 1, "bytes": 10}, "removed": {"versions": 1, "bytes": 2048}},
    "versions": [
        {"ref": "facts@2", "version": 2, "size": 10, "action": "keep", "reason": "the last 1"},
        {
            **{"ref": "facts@1", "version": 1, "size": 2048, "action": "remove"},
            "reason": "not kept by: the last 1",
        },
    ],
}


def answers(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    """A person types this when asked."""
    monkeypatch.setattr("typer.confirm", lambda *_, **__: said == "y")


def test_rm_deletes_the_version_that_was_looked_up(
    modelyard: Any, scripted_service: Scripted
) -> None:
    scripted_service.will("GET /v1/groups/facts/versions/latest", FOUND)
    scripted_service.will(f"DELETE {TWO}", GONE)
    ended = modelyard("rm", "facts:latest", "--yes", MODELYARD_URL=scripted_service.url)
    assert (ended.code, ended.out) == (0, "")
    assert ended.err == "facts@2 is deleted; it can be restored until 2030-01-08T00:00:00Z\n"
    assert scripted_service.expected == [None, '"4"']


def test_rm_asks_and_nobody_answers(
    modelyard: Any, scripted_service: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    scripted_service.will(f"GET {TWO}", FOUND)
    ended = modelyard("rm", "facts@2", MODELYARD_URL=scripted_service.url)
    assert ended.code == 1
    assert "delete facts@2 (3.0 MiB)?" in ended.err
    assert "add --yes" in ended.err
    assert ended.err.endswith("modelyard: nothing is deleted\n")
    assert [call for call, _ in scripted_service.asked] == [f"GET {TWO}"]


def test_rm_says_who_holds_it(modelyard: Any, scripted_service: Scripted) -> None:
    scripted_service.will(f"GET {TWO}", FOUND)
    held = "facts@2 is not deleted: it is held by alias prod"
    scripted_service.will(f"DELETE {TWO}", refusal(409, held))
    ended = modelyard("rm", "facts", "2", "--yes", MODELYARD_URL=scripted_service.url)
    assert (ended.code, ended.err) == (4, f"modelyard: {held}\n")


def test_rm_purge_goes_on_where_it_is_deleted_already(
    modelyard: Any, scripted_service: Scripted
) -> None:
    scripted_service.will(f"GET {TWO}", GONE)
    scripted_service.will(f"POST {TWO}/purge", {**GONE, "freed": 3 * 2**20})
    ended = modelyard("rm", "facts@2", "--yes", "--purge", MODELYARD_URL=scripted_service.url)
    assert (ended.code, ended.err) == (0, "facts@2 is purged: 3.0 MiB are free\n")
    assert scripted_service.expected == [None, '"5"']


def test_restore_names_the_revision_it_saw(modelyard: Any, scripted_service: Scripted) -> None:
    scripted_service.will(f"GET {TWO}", GONE)
    scripted_service.will(f"POST {TWO}/restore", FOUND)
    ended = modelyard("restore", "facts@2", MODELYARD_URL=scripted_service.url)
    assert (ended.code, ended.err) == (0, "facts@2 is back\n")
    assert scripted_service.expected == [None, '"5"']


def test_a_dry_run_prints_versions_bytes_and_reasons(
    modelyard: Any, scripted_service: Scripted
) -> None:
    scripted_service.will("POST /v1/groups/facts/retention/apply", PLAN)
    words = ("retention", "apply", "facts", "--dry-run")
    ended = modelyard(*words, MODELYARD_URL=scripted_service.url)
    assert ended.code == 0
    lines = [line.rstrip().split(maxsplit=3) for line in ended.out.splitlines()]
    assert lines == [
        ["ref", "size", "action", "reason"],
        ["facts@2", "10", "keep", "the last 1"],
        ["facts@1", "2048", "remove", "not kept by: the last 1"],
    ]
    assert ended.err == "to go: 1 versions (2.0 KiB); to stay: 1 versions (10 bytes)\n"
    assert len(scripted_service.asked) == 1


@pytest.mark.parametrize(("said", "calls"), [("n", 1), ("y", 3)])
def test_applying_prints_first_and_asks(
    modelyard: Any,
    scripted_service: Scripted,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    calls: int,
) -> None:
    answers(monkeypatch, said)
    scripted_service.will("POST /v1/groups/facts/retention/apply", PLAN)
    scripted_service.will("GET /v1/groups/facts/versions/1", GONE)
    ended = modelyard("retention", "apply", "facts", MODELYARD_URL=scripted_service.url)
    assert ended.code == (0 if said == "y" else 1)
    assert "facts@1" in ended.out
    assert ("restored until 2030-01-08T00:00:00Z" in ended.err) == (said == "y")
    assert len(scripted_service.asked) == calls


def test_a_policy_is_sent_as_it_was_asked_for(modelyard: Any, scripted_service: Scripted) -> None:
    warned = {**PLAN, "warning": "keep_best.metric: no version has 'loss'"}
    scripted_service.will("POST /v1/groups/facts/retention/apply", warned)
    scripted_service.will("PUT /v1/groups/facts/retention", {})
    words = ("retention", "set", "facts", "--keep-last", "5", "--keep-smallest", "loss")
    ended = modelyard(*words, "--best", "3", MODELYARD_URL=scripted_service.url)
    assert ended.code == 0
    assert ended.err == (
        "warning: keep_best.metric: no version has 'loss'\n"
        "facts has a policy: 1 versions (2.0 KiB) will be deleted within a minute\n"
    )
    assert scripted_service.asked[1][1] == (
        b'{"keep_last":5,"keep_every":null,'
        b'"keep_best":{"metric":"loss","mode":"min","n":3},"max_age_days":null}'
    )


def test_a_policy_is_tried_and_not_set(modelyard: Any, scripted_service: Scripted) -> None:
    scripted_service.will("POST /v1/groups/facts/retention/apply", PLAN)
    words = ("retention", "set", "facts", "--keep-last", "1", "--dry-run")
    ended = modelyard(*words, MODELYARD_URL=scripted_service.url)
    assert (ended.code, "facts@1" in ended.out) == (0, True)
    assert [body for _, body in scripted_service.asked] == [
        b'{"keep_last":1,"keep_every":null,"keep_best":null,"max_age_days":null}'
    ]


def test_deleted_versions_are_listed(modelyard: Any, scripted_service: Scripted) -> None:
    scripted_service.will("GET /v1/groups/facts/versions", {"data": [GONE], "next_cursor": None})
    ended = modelyard("versions", "list", "facts", "--deleted", MODELYARD_URL=scripted_service.url)
    assert (ended.code, ended.err) == (0, "")
    assert "2030-01-08T00:00:00Z" in ended.out
