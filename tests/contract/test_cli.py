"""The command line as its users see it: what it prints where, how it ends, what it refuses."""

import hashlib
import json
import signal
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi import Response

from support.commands import Scripted, refusal
from support.tiny import tiny_model


@pytest.fixture
def service(scripted_service: Scripted) -> Scripted:
    return scripted_service


def test_an_account_and_a_token_are_made_on_an_empty_home(modelyard: Any, tmp_path: Path) -> None:
    assert modelyard("accounts", "create", "alpha").code == 0
    made = modelyard("tokens", "create", "--account", "alpha", "--name", "ci", "--expires", "30d")
    assert made.code == 0
    assert made.out.startswith("my-")
    assert len(made.out.splitlines()) == 1
    assert "as member, until" in made.err
    assert stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o700


def test_tokens_are_listed_changed_and_revoked(modelyard: Any) -> None:
    modelyard("accounts", "create", "alpha")
    modelyard("tokens", "create", "--account", "alpha", "--name", "ci", "--role", "viewer")
    (token,) = json.loads(modelyard("tokens", "list", "--json").out)
    assert (token["account"], token["role"], token["expires_at"]) == ("alpha", "viewer", None)
    assert "secret" not in token
    modelyard("tokens", "change", token["id"], "--role", "admin", "--expires", "2999-01-01")
    modelyard("tokens", "revoke", token["id"])
    (token,) = json.loads(modelyard("tokens", "list", "--account", "alpha", "--json").out)
    assert (token["role"], token["expires_at"]) == ("admin", "2999-01-01T00:00:00Z")
    assert token["revoked_at"]


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("tokens", "revoke", "tok_none"), 3, "no token with the id 'tok_none'"),
        (("tokens", "create", "--account", "nobody", "--name", "x"), 3, "'nobody'"),
        (("accounts", "create", "not a name"), 1, "name: 'not a name'"),
        (("models", "add", "no-such-model"), 3, "'no-such-model'"),
    ],
)
def test_a_refusal_is_one_line_on_stderr(
    modelyard: Any, words: list[str], code: int, reason: str
) -> None:
    ended = modelyard(*words)
    assert (ended.code, ended.out) == (code, "")
    assert ended.err.startswith("modelyard: ")
    assert reason in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_directory_that_is_no_model_is_refused_by_the_file(
    modelyard: Any, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    ended = modelyard("models", "add", "mine", str(tmp_path / "model"))
    assert ended.code == 1
    assert "is not a usable model: config.json" in ended.err
    assert modelyard("models", "list", "--json").out.strip() == "[]"


def test_a_model_is_added_and_listed(modelyard: Any, tmp_path: Path) -> None:
    path = tiny_model(tmp_path / "tiny")
    assert modelyard("models", "add", "tiny", str(path)).code == 0
    (model,) = json.loads(modelyard("models", "list", "--json").out)
    assert (model["name"], model["path"]) == ("tiny", str(path))
    assert "tiny" in modelyard("models", "list").out


def test_the_schema_is_named_before_and_after_its_upgrade(modelyard: Any) -> None:
    assert json.loads(modelyard("db", "status", "--json").out)["state"] == "empty"
    assert modelyard("db", "upgrade").code == 0
    schema = json.loads(modelyard("db", "status", "--json").out)
    assert schema["state"] == "current"
    assert schema["found"] == schema["head"]


def test_a_database_of_a_newer_version_is_refused(modelyard: Any, tmp_path: Path) -> None:
    modelyard("db", "upgrade")
    with closing(sqlite3.connect(tmp_path / "home" / "modelyard.db")) as connection, connection:
        connection.execute("UPDATE modelyard_schema SET version_num = 'future'")
    for words in (["accounts", "list"], ["db", "upgrade"]):
        ended = modelyard(*words)
        assert ended.code == 4
        assert "has the schema future, which this version of modelyard" in ended.err


def test_a_home_that_cannot_be_written_is_named(modelyard: Any, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file, not a folder")
    ended = modelyard("accounts", "list")
    assert ended.code == 5
    assert f"the home {tmp_path / 'home'} is not writable" in ended.err


def test_a_setting_that_makes_no_sense_is_named(modelyard: Any) -> None:
    ended = modelyard("accounts", "list", MODELYARD_PORT="many")
    assert ended.code == 1
    assert ended.err.startswith("modelyard: MODELYARD_PORT: ")


def test_a_command_line_that_makes_no_sense_ends_with_2(modelyard: Any, service: Scripted) -> None:
    for words in (["promote", "facts@2"], ["approve", "facts"], ["tokens", "change", "x"]):
        assert modelyard(*words, MODELYARD_URL=service.url).code == 2


def test_a_service_that_is_not_there_is_named_with_how_to_start_it(modelyard: Any) -> None:
    ended = modelyard("sessions", "list", MODELYARD_URL="http://127.0.0.1:1")
    assert ended.code == 5
    assert "http://127.0.0.1:1" in ended.err
    assert "modelyard serve" in ended.err


def test_without_url_and_credentials_both_ways_out_are_named(modelyard: Any) -> None:
    ended = modelyard("groups", "list")
    assert ended.code == 1
    assert "MODELYARD_URL" in ended.err
    assert "modelyard serve" in ended.err
    assert "ServiceClient" not in ended.err


def test_hidden_commands_are_not_suggested(modelyard: Any) -> None:
    assert "Did you mean 'serve'?" in modelyard("serv").err
    assert "Did you mean" not in modelyard("workr").err


def test_a_problem_of_the_service_is_its_detail(modelyard: Any, service: Scripted) -> None:
    service.will("GET /v1/sessions/nope", refusal(404, "no session named 'nope'"))
    ended = modelyard("sessions", "show", "nope", MODELYARD_URL=service.url)
    assert (ended.code, ended.err) == (3, "modelyard: no session named 'nope'\n")


def test_a_wrong_filter_is_named_as_the_option_is(modelyard: Any, service: Scripted) -> None:
    service.will("GET /v1/groups/facts/versions", refusal(422, "query.tag: 'x' is no tag"))
    ended = modelyard("versions", "list", "facts", "--tag", "x", MODELYARD_URL=service.url)
    assert ended.err == "modelyard: tag: 'x' is no tag\n"


def test_an_answer_that_is_not_the_services_is_no_traceback(
    modelyard: Any, service: Scripted
) -> None:
    service.will("GET /v1/groups", Response("<html>", media_type="text/html"))
    ended = modelyard("groups", "list", MODELYARD_URL=service.url)
    assert ended.code == 5
    assert "not modelyard" in ended.err


def test_lists_follow_the_pages_and_print_whole_values(modelyard: Any, service: Scripted) -> None:
    long = "facts-" + "x" * 200
    first = {"data": [{"name": long, "status": "running"}], "next_cursor": "c"}
    service.will("GET /v1/sessions", first, {"data": [{"name": "two\x1b[2J"}], "next_cursor": None})
    ended = modelyard("sessions", "list", MODELYARD_URL=service.url)
    assert long in ended.out
    assert "two?[2J" in ended.out


def test_versions_are_the_newest_page_unless_all_are_asked_for(
    modelyard: Any, service: Scripted
) -> None:
    one, two = ({"ref": f"facts@{n}", "kind": "state"} for n in (2, 1))
    page = {"data": [one], "next_cursor": "c"}
    service.will("GET /v1/groups/facts/versions", page)
    ended = modelyard("versions", "list", "facts", "--json", MODELYARD_URL=service.url)
    assert json.loads(ended.out) == [one]
    assert "--all" in ended.err
    service.will("GET /v1/groups/facts/versions", page, {"data": [two], "next_cursor": None})
    ended = modelyard("versions", "list", "facts", "--all", "--json")
    assert json.loads(ended.out) == [one, two]


@pytest.mark.parametrize("words", [["facts@2"], ["facts", "2"]])
def test_a_version_is_written_either_way(
    modelyard: Any, service: Scripted, words: list[str]
) -> None:
    service.will("GET /v1/groups/facts/versions/2", {"ref": "facts@2", "lora": {"rank": 4}})
    ended = modelyard("show", *words, MODELYARD_URL=service.url)
    assert "facts@2" in ended.out
    assert "rank=4" in ended.out


FILE = {"path": "checkpoints/hf/a b.bin", "size": 5, "sha256": hashlib.sha256(b"bytes").hexdigest()}
TOLD = {"ref": "facts@2", "group": "facts", "version": 2, "kind": "merged", "base_model": "tiny"}
FILES = "GET /v1/groups/facts/versions/2/files"


def test_a_download_is_verified_and_not_repeated(
    modelyard: Any, service: Scripted, tmp_path: Path
) -> None:
    service.will("GET /v1/groups/facts/versions/2", TOLD)
    service.will(FILES, {"data": [FILE]})
    service.will(f"{FILES}/{FILE['path']}", Response(b"bytes"))
    command = ("pull", "facts@2", str(tmp_path / "out"))
    assert modelyard(*command, MODELYARD_URL=service.url).code == 0
    assert (tmp_path / "out" / "checkpoints" / "hf" / "a b.bin").read_bytes() == b"bytes"
    asked = len(service.asked)
    assert modelyard(*command).code == 0
    assert str(FILE["path"]) not in str(service.asked[asked:])  # no file again


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [("a.bin", b"other", "arrived damaged"), ("../a.bin", b"bytes", "outside the version")],
)
def test_a_download_that_is_wrong_leaves_nothing(
    modelyard: Any, service: Scripted, tmp_path: Path, path: str, body: bytes, reason: str
) -> None:
    service.will("GET /v1/groups/facts/versions/2", TOLD)
    service.will(FILES, {"data": [{**FILE, "path": path}]})
    service.will(f"{FILES}/{path}", Response(body))
    words = ("pull", "facts@2", str(tmp_path / "out"))
    ended = modelyard(*words, MODELYARD_URL=service.url)
    assert ended.code == 1
    assert reason in ended.err
    assert [file for file in tmp_path.rglob("*") if file.name.endswith(("bin", "partial"))] == []


def test_a_merge_is_waited_for_and_its_version_printed(modelyard: Any, service: Scripted) -> None:
    merge = {"id": "mrg_1", "status": "pending", "version": None, "error": None}
    service.will("POST /v1/groups/facts/versions/1/merge", merge)
    done = {**merge, "status": "completed", "version": "facts@3"}
    service.will("GET /v1/merges/mrg_1", {**merge, "status": "running"}, done)
    ended = modelyard("merge", "facts", "1", MODELYARD_URL=service.url)
    assert (ended.code, ended.out) == (0, "facts@3\n")
    service.will("GET /v1/merges/mrg_1", {**merge, "status": "failed", "error": "no room"})
    ended = modelyard("merge", "facts@1")
    assert (ended.code, ended.err.splitlines()[-1]) == (
        1,
        "modelyard: merging facts@1 failed: no room",
    )


VERSION = {"ref": "facts@2", "version": 2, "revision": 5}
ALIAS = {"alias": "prod", "ref": "facts@1", "version": 1, "revision": 7}


@pytest.mark.parametrize(("word", "approval"), [("approve", "approved"), ("reject", "rejected")])
def test_a_decision_is_about_the_version_that_was_read(
    modelyard: Any, service: Scripted, word: str, approval: str
) -> None:
    service.will("GET /v1/groups/facts/versions/prod", VERSION)
    service.will("PUT /v1/groups/facts/versions/2/approval", VERSION)
    ended = modelyard(word, "facts:prod", "--why", "seen", MODELYARD_URL=service.url)
    assert (ended.code, ended.err) == (0, f"facts@2 is {approval}\n")
    assert json.loads(service.asked[-1][1]) == {"approval": approval, "why": "seen"}
    assert service.expected[-1] == '"5"'


def test_an_alias_is_moved_from_where_it_was_seen(modelyard: Any, service: Scripted) -> None:
    service.will("GET /v1/groups/facts/versions/2", VERSION)
    service.will("GET /v1/groups/facts/aliases/prod", ALIAS)
    service.will("PUT /v1/groups/facts/aliases/prod", ALIAS)
    ended = modelyard("alias", "set", "prod", "facts@2", MODELYARD_URL=service.url)
    assert (ended.code, ended.err) == (
        0,
        "facts:prod points at facts@2, no longer at facts@1\n",
    )
    assert service.expected[-1] == '"7"'
    ended = modelyard("alias", "set", "prod", "facts", "2", "--from", "3")
    assert (ended.code, ended.err) == (
        4,
        "modelyard: facts:prod points at facts@1, not at version 3\n",
    )
    service.will("GET /v1/groups/facts/aliases/prod", refusal(404, "no alias"))
    assert modelyard("alias", "set", "prod", "facts@2").code == 0
    assert service.expected[-1] == "*"


def test_aliases_are_listed_and_removed(modelyard: Any, service: Scripted) -> None:
    service.will("GET /v1/groups/facts/aliases", {"data": [ALIAS], "next_cursor": None})
    ended = modelyard("alias", "list", "facts", MODELYARD_URL=service.url)
    assert ended.out.splitlines()[1].split()[:2] == ["prod", "facts@1"]
    service.will("GET /v1/groups/facts/aliases/prod", ALIAS)
    service.will("DELETE /v1/groups/facts/aliases/prod", Response(status_code=204))
    ended = modelyard("alias", "remove", "facts", "prod", "--from", "1")
    assert (ended.code, ended.err) == (
        0,
        "facts:prod is removed; it pointed at facts@1\n",
    )
    assert service.expected[-1] == '"7"'


def test_the_history_says_what_was_at_a_time(modelyard: Any, service: Scripted) -> None:
    move = {"alias": "prod", "kind": "alias", "version": 2, "from": "facts@1", "to": "facts@2"}
    service.will("GET /v1/groups/facts/history", {"data": [move], "next_cursor": None})
    ended = modelyard("history", "facts", "--json", MODELYARD_URL=service.url)
    assert json.loads(ended.out) == [move]
    service.will("GET /v1/groups/facts/standing", {"data": [move]})
    ended = modelyard("history", "facts", "--at", "2030-01-31T12:00")
    assert ended.err == "at 2030-01-31T12:00:00+00:00:\n"
    assert ended.out.splitlines()[1].split()[:2] == ["prod", "facts@2"]
    assert modelyard("history", "facts", "--at", "tuesday").code == 2


def test_an_alias_is_promoted_as_the_version_it_is(modelyard: Any, service: Scripted) -> None:
    service.will("GET /v1/groups/facts/versions/best", VERSION)
    service.will("POST /v1/deployments/prod/promote", {})
    service.will("GET /v1/deployments/prod", deployment("active", "facts@2"))
    ended = modelyard("promote", "facts:best", "--as", "prod", MODELYARD_URL=service.url)
    assert ended.code == 0
    assert ("POST /v1/deployments/prod/promote", b'{"version":"facts@2"}') in service.asked


def test_the_lineage_is_a_table(modelyard: Any, service: Scripted) -> None:
    nodes = [
        {"ref": f"facts@{n}", "kind": "state", "step": n, "deleted_at": None, "purged_at": None}
        for n in (1, 2)
    ]
    found = {"root": "facts@2", "nodes": nodes, "edges": [], "cut": True}
    service.will("GET /v1/groups/facts/versions/2/lineage", found)
    ended = modelyard("lineage", "facts@2", MODELYARD_URL=service.url)
    assert [line.split()[0] for line in ended.out.splitlines()] == ["ref", "facts@1", "facts@2"]
    assert "more relatives" in ended.err


def test_a_damaged_file_is_named_and_fails_the_command(modelyard: Any, service: Scripted) -> None:
    fine = {"path": "a.json", "size": 1, "problem": None}
    found = {"ref": "facts@2", "intact": True, "manifest": True, "files": [fine]}
    service.will("POST /v1/groups/facts/versions/2/verify", found)
    ended = modelyard("verify", "facts@2", MODELYARD_URL=service.url)
    assert (ended.code, ended.err.splitlines()[-1]) == (
        0,
        "facts@2: 1 files are what was registered",
    )
    wrong = {**found, "intact": False, "files": [fine, {**fine, "path": "b", "problem": "gone"}]}
    service.will("POST /v1/groups/facts/versions/2/verify", wrong)
    ended = modelyard("verify", "facts@2")
    assert (ended.code, ended.err.splitlines()[-1]) == (
        1,
        "modelyard: facts@2 is damaged: 1 files are wrong",
    )
    assert ended.out.splitlines()[1].split() == ["b", "gone"]


def deployment(status: str, version: str | None, pending: Any = None) -> dict[str, Any]:
    return {"name": "prod", "status": status, "version": version, "pending": pending}


def loading(status: str = "starting", error: str | None = None) -> dict[str, Any]:
    return {"version": "facts@2", "status": status, "error": error}


def test_a_promotion_is_waited_for(modelyard: Any, service: Scripted) -> None:
    starting = deployment("starting", None, loading())
    service.will("POST /v1/deployments/prod/promote", starting)
    service.will("GET /v1/deployments/prod", starting, deployment("active", "facts@2"))
    ended = modelyard("promote", "facts", "2", "--as", "prod", MODELYARD_URL=service.url)
    assert ended.code == 0
    assert f"prod now serves facts@2; OpenAI clients: {service.url}/openai/v1" in ended.err
    assert ("POST /v1/deployments/prod/promote", b'{"version":"facts@2"}') in service.asked


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (deployment("active", "facts@1", loading("failed", "no memory")), "no memory"),
        (deployment("failed", None, loading("failed", "no memory")), "no memory"),
        (deployment("active", "facts@9"), "it is active with facts@9"),
    ],
)
def test_a_promotion_that_fails_says_why(
    modelyard: Any, service: Scripted, found: Any, reason: str
) -> None:
    service.will("POST /v1/deployments/prod/promote", found)
    service.will("GET /v1/deployments/prod", found)
    ended = modelyard("promote", "facts@2", "--as", "prod", MODELYARD_URL=service.url)
    assert ended.code == 1
    assert ended.err.splitlines()[-1] == f"modelyard: prod does not serve facts@2: {reason}"


def test_a_roll_back_is_waited_for(modelyard: Any, service: Scripted) -> None:
    back = deployment("active", "facts@3", loading())
    service.will("POST /v1/deployments/prod/rollback", back)
    service.will("GET /v1/deployments/prod", back, deployment("active", "facts@2"))
    ended = modelyard("rollback", "prod", MODELYARD_URL=service.url)
    assert (ended.code, ended.err.splitlines()[-1]) == (0, "prod now serves facts@2")


def test_a_roll_back_may_leave_nothing_served(modelyard: Any, service: Scripted) -> None:
    withdrawn = deployment("failed", None, loading("failed", "withdrawn by a rollback"))
    service.will("POST /v1/deployments/prod/rollback", withdrawn)
    ended = modelyard("rollback", "prod", MODELYARD_URL=service.url)
    assert (ended.code, ended.err) == (
        0,
        "prod serves nothing: what was starting is withdrawn\n",
    )


def test_a_version_that_starts_again_is_waited_for(modelyard: Any, service: Scripted) -> None:
    again = deployment("starting", "facts@2")
    service.will("POST /v1/deployments/prod/promote", again)
    service.will("GET /v1/deployments/prod", again, deployment("active", "facts@2"))
    ended = modelyard("promote", "facts@2", "--as", "prod", MODELYARD_URL=service.url)
    assert ended.code == 0
    assert len(service.asked) == 3


def test_a_session_is_stopped_and_waited_for(modelyard: Any, service: Scripted) -> None:
    session = {"id": "ses_1", "status": "stopping"}
    service.will("POST /v1/sessions/facts/stop", session)
    service.will("GET /v1/sessions/ses_1", session, {**session, "status": "stopped"})
    ended = modelyard("sessions", "stop", "facts", MODELYARD_URL=service.url)
    assert (ended.code, ended.err.splitlines()[-1]) == (0, "facts is stopped")


def test_a_session_is_kept_and_deleted(modelyard: Any, service: Scripted) -> None:
    lives = {"name": "facts", "expires_at": "2030-01-01T00:00:00Z"}
    service.will("POST /v1/sessions/facts/heartbeat", lives)
    ended = modelyard("sessions", "heartbeat", "facts", MODELYARD_URL=service.url)
    assert (ended.code, ended.err.strip()) == (0, "facts lives until 2030-01-01T00:00:00Z")
    ended = modelyard("sessions", "heartbeat", "facts", "--json", MODELYARD_URL=service.url)
    assert json.loads(ended.out) == lives
    said = "session 'facts' is running; stop it first"
    service.will("DELETE /v1/sessions/facts", refusal(409, said), None)
    ended = modelyard("sessions", "delete", "facts", MODELYARD_URL=service.url)
    assert (ended.code, said in ended.err) == (4, True)
    ended = modelyard("sessions", "delete", "facts", MODELYARD_URL=service.url)
    assert (ended.code, ended.err.strip()) == (0, "facts is deleted")


def test_ctrl_c_ends_the_waiting_and_says_what_goes_on(modelyard: Any, service: Scripted) -> None:
    starting = deployment("starting", None, loading())
    service.will("POST /v1/deployments/prod/promote", starting)
    service.will("GET /v1/deployments/prod", starting)
    main_thread = threading.main_thread().ident or 0
    timer = threading.Timer(1, signal.pthread_kill, (main_thread, signal.SIGINT))
    timer.start()
    ended = modelyard("promote", "facts@2", "--as", "prod", MODELYARD_URL=service.url)
    timer.join()
    assert ended.code == 130
    assert ended.err.splitlines()[-1] == (
        "loading facts@2 goes on; see: modelyard deployments show prod; "
        "to withdraw it: modelyard rollback prod"
    )


def test_usage_is_shown_by_session_and_adds_up(modelyard: Any, service: Scripted) -> None:
    total = {"train": 12, "prefill": 5, "cached_prefill": 0, "sample": 9}
    tokens = {"train": 12, "prefill": 3, "cached_prefill": 0, "sample": 4}
    totals = {"session": None, "tokens": total, "sessions": [{"session": "s1", "tokens": tokens}]}
    service.will("GET /v1/usage/totals", totals)
    service.will("GET /v1/sessions", {"data": [{"id": "s1", "name": "first"}]})
    lines = modelyard("usage", MODELYARD_URL=service.url).out.splitlines()
    assert lines[1].split() == ["s1", "first", "12", "3", "0", "4"]
    assert lines[2].split() == ["outside", "sessions", "-", "0", "2", "0", "5"]
    assert lines[3].split() == ["total", "-", "12", "5", "0", "9"]


def test_usage_of_a_session_takes_its_name(modelyard: Any, service: Scripted) -> None:
    tokens = {"train": 12, "prefill": 3, "cached_prefill": 0, "sample": 4}
    mine = {"session": "s1", "tokens": tokens, "sessions": [{"session": "s1", "tokens": tokens}]}
    service.will("GET /v1/sessions/first", {"id": "s1", "name": "first"})
    service.will("GET /v1/usage/totals", mine)
    ended = modelyard("usage", "--session", "first", "--json", MODELYARD_URL=service.url)
    assert json.loads(ended.out) == mine
