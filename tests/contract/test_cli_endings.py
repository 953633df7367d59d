"""How commands end: exit codes, Ctrl-C, closed pipes; and what all of them have in common."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from fastapi import Response

from registry.kit.errors import Kind, ServiceError
from session.cli.errors import CommandFailed, Ending, ending
from session.cli.root import app
from session.client.errors import ConnectionFailed, api_error
from support.commands import KEY, Scripted, refusal

PROGRAM = (sys.executable, "-m", "session")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        *((400, 1), (401, 4), (403, 4), (404, 3), (409, 4), (412, 4), (422, 1)),
        *((428, 4), (429, 5), (500, 1), (502, 5), (503, 5), (504, 5)),
    ],
)
def test_an_exit_code_tells_what_kind_of_answer_it_was(
    modelyard: Any, scripted_service: Scripted, status: int, code: int
) -> None:
    scripted_service.will("GET /v1/groups", refusal(status, "so it is"))
    ended = modelyard("groups", "list", MODELYARD_URL=scripted_service.url)
    assert (ended.code, ended.out, ended.err) == (code, "", "modelyard: so it is\n")


def test_on_the_service_s_machine_the_same_trouble_has_the_same_code() -> None:
    status = {
        **{"malformed": 400, "unauthenticated": 401, "forbidden": 403, "not_found": 404},
        **{"conflict": 409, "precondition_failed": 412, "invalid": 422, "internal": 500},
        **{"precondition_required": 428, "limit_exceeded": 429, "unavailable": 503},
    }
    for kind in Kind:
        error = type("Trouble", (ServiceError,), {"kind": kind})("x")
        assert ending(error) == ending(api_error(status[kind], "x"))
    assert ending(ConnectionFailed("http://x", "x")) == Ending.away
    assert ending(CommandFailed("x")) == Ending.failed


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    nested = getattr(command, "commands", None)
    if nested is None:
        yield path, command
        return
    for name, child in nested.items():
        if not child.hidden:
            yield from _commands(child, (*path, name))


COMMANDS = dict(_commands(typer.main.get_command(app)))


@pytest.mark.parametrize("words", sorted(set(COMMANDS) - {("serve",)}), ids=" ".join)
def test_every_command_can_print_json(words: tuple[str, ...]) -> None:
    options = {option for param in COMMANDS[words].params for option in param.opts}
    assert "--json" in options


@pytest.mark.parametrize("words", sorted(COMMANDS), ids=" ".join)
def test_every_command_says_what_it_does_in_sentences(words: tuple[str, ...]) -> None:
    assert str(COMMANDS[words].help).strip().endswith(".")


def test_a_change_prints_what_it_made(modelyard: Any, scripted_service: Scripted) -> None:
    version = {"ref": "facts@2", "version": 2, "revision": 5, "approval": "pending"}
    scripted_service.will("GET /v1/groups/facts/versions/2", version)
    approved = {**version, "revision": 6, "approval": "approved"}
    scripted_service.will("PUT /v1/groups/facts/versions/2/approval", approved)
    ended = modelyard("approve", "facts@2", "--json", MODELYARD_URL=scripted_service.url)
    assert (ended.code, ended.err) == (0, "")
    assert json.loads(ended.out) == approved


@pytest.mark.parametrize("command", ["show", "lineage", "versions files"])
@pytest.mark.parametrize("word", ["facts", "facts:latest"])
def test_a_group_alone_is_its_newest_where_it_is_only_read(
    modelyard: Any, scripted_service: Scripted, command: str, word: str
) -> None:
    path = {"show": "", "lineage": "/lineage", "versions files": "/files"}[command]
    found = {"ref": "facts@9", "data": [], "nodes": [], "cut": False}
    scripted_service.will(f"GET /v1/groups/facts/versions/latest{path}", found)
    assert modelyard(*command.split(), word, MODELYARD_URL=scripted_service.url).code == 0


def test_the_newest_of_a_kind_is_shown(modelyard: Any, scripted_service: Scripted) -> None:
    scripted_service.will("GET /v1/groups/facts/latest", {"ref": "facts@4"})
    words = ("show", "facts", "--kind", "merged", "--json")
    ended = modelyard(*words, MODELYARD_URL=scripted_service.url)
    assert json.loads(ended.out) == {"ref": "facts@4"}
    assert modelyard("show", "facts@1", "--kind", "merged").code == 2


def test_the_version_is_printed(modelyard: Any) -> None:
    assert modelyard("--version").out == "modelyard 0.1.0\n"


def _environment(url: str, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MODELYARD_")}
    return {**kept, "MODELYARD_URL": url, "MODELYARD_API_KEY": KEY, **more}


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_reader_that_has_seen_enough_ends_it_without_a_word(
    scripted_service: Scripted, form: list[str]
) -> None:
    rows = [{"name": "a" * 60, "last_version": n} for n in range(5000)]
    scripted_service.will("GET /v1/groups", {"data": rows, "next_cursor": None})
    reader, writer = os.pipe()
    os.close(reader)
    command = [*PROGRAM, "groups", "list", *form]
    environment = _environment(scripted_service.url)
    done = subprocess.run(command, env=environment, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_ctrl_c_is_one_line_and_130(modelyard: Any, scripted_service: Scripted) -> None:
    class Interrupting(Response):
        async def __call__(self, *arguments: Any) -> None:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            await super().__call__(*arguments)

    scripted_service.will("GET /v1/groups", Interrupting())
    ended = modelyard("groups", "list", MODELYARD_URL=scripted_service.url)
    assert (ended.code, ended.out, ended.err) == (130, "", "modelyard: interrupted\n")


def test_ctrl_c_in_a_pull_only_says_how_to_go_on(
    modelyard: Any, scripted_service: Scripted, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Hanging(Response):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            while (await receive())["type"] != "http.disconnect":
                pass

    version = "GET /v1/groups/facts/versions/1"
    scripted_service.will(version, {"version": 1}, Hanging())
    scripted_service.will(f"{version}/files", {"data": []})
    ended = modelyard("pull", "facts@1", str(tmp_path), MODELYARD_URL=scripted_service.url)
    assert (ended.code, ended.err) == (130, "run the same command again to go on where it was\n")
    assert [record for record in caplog.records if record.name == "modelyard"] == []


def test_no_color_is_obeyed() -> None:
    def shown(**more: str) -> str:
        environment = _environment("http://127.0.0.1:1", FORCE_COLOR="1", **more)
        done = subprocess.run(
            [*PROGRAM, "--help"], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    assert "\x1b[36m" in shown() or "\x1b[1;36m" in shown()
    assert "36m" not in shown(NO_COLOR="1")


def completed(modelyard: Any, line: str, url: str) -> list[str]:
    """As bash asks for it; the last word is the one that is being typed."""
    words = line.split(" ")
    asked = {"_MODELYARD_COMPLETE": "complete_bash", "COMP_CWORD": str(len(words) - 1)}
    ended = modelyard(COMP_WORDS=line, MODELYARD_URL=url, **asked)
    assert ended.err == ""
    return list(ended.out.split())


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("modelyard sho", ["show"]),
        ("modelyard show f", ["facts", "far"]),
        ("modelyard show facts@", ["facts@12", "facts@2"]),
        ("modelyard show facts@1", ["facts@12"]),
        ("modelyard show facts:", ["facts:prod", "facts:latest"]),
        ("modelyard show facts 1", ["12"]),
        ("modelyard show facts @", ["@12", "@2"]),  # bash splits at these marks
        ("modelyard show facts :", [":prod", ":latest"]),
        ("modelyard alias list fa", ["facts", "far"]),
        ("modelyard alias remove facts p", ["prod"]),
        ("modelyard history facts --alias p", ["prod"]),
        ("modelyard versions list facts --alias p", ["prod"]),
        ("modelyard versions list facts --stage s", ["staging"]),
        ("modelyard show facts --kind ", ["state", "adapter", "merged"]),
    ],
)
def test_names_and_numbers_are_completed(
    modelyard: Any, scripted_service: Scripted, line: str, offered: list[str]
) -> None:
    groups = [{"name": name} for name in ("facts", "far", "other")]
    scripted_service.will("GET /v1/groups", {"data": groups})
    versions = [{"version": number} for number in (12, 2)]
    scripted_service.will("GET /v1/groups/facts/versions", {"data": versions})
    scripted_service.will("GET /v1/groups/facts/aliases", {"data": [{"alias": "prod"}]})
    assert completed(modelyard, line, scripted_service.url) == offered


def test_completion_of_a_service_that_is_away_is_silent(
    modelyard: Any, scripted_service: Scripted
) -> None:
    assert completed(modelyard, "modelyard show f", "http://127.0.0.1:1") == []
    assert completed(modelyard, "modelyard show f", "no address") == []
    scripted_service.will("GET /v1/groups", refusal(503, "later"), Response("<html>"), {"a": 1})
    for _ in range(3):
        assert completed(modelyard, "modelyard show f", scripted_service.url) == []
