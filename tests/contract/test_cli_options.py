"""What options take, and what is said of a value that they do not."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from fastapi import Response

from support.commands import Ended, Scripted, refusal

LIVE = {
    **{"ref": "facts@1", "deleted_at": None, "deleted_by": None, "deleted_why": None},
    **{"purge_at": None, "purged_at": None, "freed": None},
}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("versions list facts --kind foo", ["state", "adapter", "merged"]),
        ("versions list facts --approval maybe", ["pending", "approved", "rejected"]),
        ("versions edit facts@1 --stage x", ["none", "staging", "production", "archived"]),
        ("show facts --kind foo", ["state", "adapter", "merged"]),
        ("push . facts --kind foo", ["state", "adapter", "merged"]),
        ("sessions list --status x", ["created", "blocked", "stopped", "expired"]),
        ("webhooks create https://x.example --type nope", ["alias.moved", "version.registered"]),
        ("webhooks deliveries whk_1 --status x", ["pending", "delivered", "dead"]),
        ("webhooks edit whk_1", ["what to change"]),
        ("retention set facts", ["--keep-last", "--keep-smallest", "--max-age-days"]),
        ("retention set facts --best 3", ["--best", "--keep-smallest", "--keep-largest"]),
        ("push . facts --parent first", ["GROUP@VERSION"]),
    ],
)
def test_a_value_that_an_option_does_not_take_is_2_and_says_what_it_takes(
    modelyard: Any, line: str, said: list[str]
) -> None:
    ended: Ended = modelyard(*line.split(), MODELYARD_URL="http://127.0.0.1:1")
    assert (ended.code, ended.out) == (2, "")
    assert [word for word in said if word not in ended.err] == []


def test_a_parent_that_is_not_there_ends_a_push_with_3(
    modelyard: Any, scripted_service: Scripted, tmp_path: Path
) -> None:
    scripted_service.will("GET /v1/groups/first/versions/99", refusal(404, "no first@99"))
    words = ("push", str(tmp_path), "facts", "--parent", "first@99")
    ended = modelyard(*words, MODELYARD_URL=scripted_service.url)
    assert (ended.code, ended.err) == (3, "modelyard: no first@99\n")


def test_versions_of_a_session_are_asked_for_by_its_name(
    modelyard: Any, scripted_service: Scripted
) -> None:
    scripted_service.will("GET /v1/sessions/first", {"id": "ses_1", "name": "first"})
    scripted_service.will("GET /v1/groups/facts/versions", {"data": [], "next_cursor": None})
    words = ("versions", "list", "facts", "--session", "first", "--json")
    assert modelyard(*words, MODELYARD_URL=scripted_service.url).code == 0
    assert parse_qs(scripted_service.queries[-1])["session"] == ["ses_1"]


def test_versions_of_a_session_that_is_not_there_are_3(
    modelyard: Any, scripted_service: Scripted
) -> None:
    scripted_service.will("GET /v1/sessions/nope", refusal(404, "no session 'nope'"))
    words = ("versions", "list", "facts", "--session", "nope")
    assert modelyard(*words, MODELYARD_URL=scripted_service.url).code == 3


def test_a_version_that_is_not_deleted_shows_nothing_of_deletion(
    modelyard: Any, scripted_service: Scripted
) -> None:
    place = "GET /v1/groups/facts/versions/1"
    scripted_service.will(place, LIVE, LIVE, {**LIVE, "deleted_at": "2030-01-31T12:00:00Z"})
    shown = modelyard("show", "facts@1", MODELYARD_URL=scripted_service.url)
    assert shown.out.split() == ["ref", "facts@1"]
    assert json.loads(modelyard("show", "facts@1", "--json").out) == LIVE
    assert "purge_at" in modelyard("show", "facts@1").out


def test_lineage_says_which_versions_are_gone(modelyard: Any, scripted_service: Scripted) -> None:
    gone = "2030-01-31T12:00:00Z"
    ends = [(gone, gone), (gone, None), (None, None)]
    nodes = [
        {"ref": f"facts@{number}", "deleted_at": deleted, "purged_at": purged}
        for number, (deleted, purged) in enumerate(ends, 1)
    ]
    found = {"nodes": nodes, "cut": False}
    scripted_service.will("GET /v1/groups/facts/versions/3/lineage", found)
    out = modelyard("lineage", "facts@3", MODELYARD_URL=scripted_service.url).out
    state = out.splitlines()[0].split().index("state")
    assert [line.split()[state] for line in out.splitlines()[1:]] == ["purged", "deleted", "live"]


def test_layers_are_compared_in_the_order_of_their_numbers(
    modelyard: Any, scripted_service: Scripted
) -> None:
    rows = [{"line": "tensor", "name": f"layers.{n}.q"} for n in (0, 10, 2)]
    total = {"line": "total", "tensors": 3, "compared": 3, "difference": 1.0}
    lines = "\n".join(map(json.dumps, [*rows, total])) + "\n"
    scripted_service.will("GET /v1/groups/facts/versions/2/diff", Response(lines))
    words = ("diff", "facts@1", "facts@2", "--tensors")
    out = modelyard(*words, MODELYARD_URL=scripted_service.url).out
    names = [line.split()[0] for line in out.splitlines()[1:]]
    assert names == ["layers.0.q", "layers.2.q", "layers.10.q"]
