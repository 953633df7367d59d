"""Who computes next, on a clock that only work moves."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from session.engine.turns import Turns


class Work:
    """Turns over passes that take a second each; `said` is what ran, in its order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[str] = []
        self.passes = 0
        self._now = 0.0
        self._gate = threading.Event()
        clock = SimpleNamespace(perf_counter=lambda: self._now)
        monkeypatch.setattr("session.engine.turns.time", clock)
        self.turns = Turns(self._pass, start=lambda: self.said.append("start"))
        self._all: list[Future[Any]] = [self.turns.take(self._gate.wait)]

    def take(
        self, name: str, seconds: float, *, meanwhile: Callable[[], None] | None = None
    ) -> Future[str]:
        return self._add(self.turns.take, name, seconds, meanwhile)

    def note(self, name: str) -> Future[str]:
        return self._add(self.turns.note, name, 0.0)

    def go(self) -> list[str]:
        """Everything that was asked for until now has been waiting. Returns when it is done."""
        self._gate.set()
        self.turns.close()
        return self.said[1:]

    def begin(self) -> None:
        self._gate.set()
        for each in self._all:
            each.exception()

    def _add(
        self,
        add: Callable[[Callable[[], str]], Future[str]],
        name: str,
        seconds: float,
        meanwhile: Callable[[], None] | None = None,
    ) -> Future[str]:
        def job() -> str:
            self.said.append(name)
            if meanwhile is not None:
                meanwhile()
            self._now += seconds
            return name

        self._all.append(add(job))
        return self._all[-1]

    def _pass(self) -> bool:
        if self.passes:
            self.passes -= 1
            self.said.append("pass")
            self._now += 1
        return self.passes > 0


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    work = Work(monkeypatch)
    yield work
    work.go()


def test_turns_of_training_keep_the_order_of_their_coming(work: Work) -> None:
    for name in "abc":
        work.take(name, 1)
    assert work.go() == ["a", "b", "c"]


def test_a_note_waits_for_the_turn_that_runs_and_for_no_other(work: Work) -> None:
    work.take("a", 1)
    work.take("b", 1)
    work.note("n")
    assert work.go() == ["n", "a", "b"]


def test_sampling_has_as_much_time_as_training_had(work: Work) -> None:
    work.passes = 9
    work.note("n")
    work.take("three seconds", 3)
    work.take("half a second", 0.5)
    work.take("four seconds", 4)
    work.begin()
    passes = ["pass"] * 3
    expected = ["n", "three seconds", *passes, "half a second", "pass", "four seconds"]
    assert work.said[1:][: len(expected)] == expected


def test_a_request_that_comes_during_a_turn_waits_for_no_other_one(work: Work) -> None:
    def come() -> None:
        work.passes = 2
        work.note("request")

    work.take("long", 3, meanwhile=come)
    work.take("next", 1)
    work.begin()
    assert work.said[1:][:5] == ["long", "request", "pass", "pass", "next"]


def test_training_alone_waits_for_no_pass(work: Work) -> None:
    work.passes = 1
    work.note("n")
    work.take("a", 5)
    work.take("b", 5)
    work.begin()
    assert work.said[1:] == ["n", "a", "pass", "b"]


def test_what_a_turn_raises_is_its_own(work: Work) -> None:
    def fail() -> None:
        raise ValueError("of this turn")

    failed = work.turns.take(fail)
    after = work.take("after", 1)
    work.begin()
    assert isinstance(failed.exception(), ValueError)
    assert after.result() == "after"


def test_a_turn_that_was_given_up_is_left_out(work: Work) -> None:
    given_up = work.take("given up", 1)
    work.take("after", 1)
    assert given_up.cancel()
    assert work.go() == ["after"]


def test_closing_does_what_waits_and_no_more_passes(work: Work) -> None:
    work.take("a", 1)
    work.note("n")
    work.passes = 100
    assert work.go() == ["n", "a"]
