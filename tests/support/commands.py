"""The command line in this process, and a service that answers it as a test says."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response

from session.cli.root import main
from support.server import running

KEY = "my-key"


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


def runner(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """Runs one command, with these variables from then on."""

    def run(*words: str, **environment: str) -> Ended:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            main(words)
        said = capsys.readouterr()
        return Ended(int(ended.value.code or 0), said.out, said.err)

    return run


@dataclass(frozen=True)
class Scripted:
    """A service that says what a test wants it to say."""

    url: str
    answers: dict[str, list[Any]]
    asked: list[tuple[str, Any]]
    expected: list[str | None]
    queries: list[str]

    def will(self, call: str, *answers: Any) -> None:
        """Each answer once, in turn; the last for ever."""
        self.answers[call] = list(answers)


@contextmanager
def scripted() -> Iterator[Scripted]:
    answers: dict[str, list[Any]] = {}
    asked: list[tuple[str, Any]] = []
    expected: list[str | None] = []
    queries: list[str] = []
    app = FastAPI()

    @app.api_route("/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
    async def answer(path: str, request: Request) -> Response:
        asked.append((f"{request.method} {request.url.path}", await request.body()))
        queries.append(request.url.query)
        expected.append(request.headers.get("if-match") or request.headers.get("if-none-match"))
        assert request.headers["authorization"] == f"Bearer {KEY}"
        given = answers[f"{request.method} /{path}"]
        found = given.pop(0) if len(given) > 1 else given[0]
        if isinstance(found, Response):
            return found
        return Response(json.dumps(found), media_type="application/json")

    with running(app) as url:
        yield Scripted(url, answers, asked, expected, queries)


def refusal(status: int, detail: str) -> Response:
    body = {"title": "X", "status": status, "detail": detail, "kind": "x"}
    return Response(json.dumps(body), status, media_type="application/problem+json")
