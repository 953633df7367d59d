"""How a script ends: what it asked for is done, and what failed is said."""

import logging
import signal
import subprocess
import sys
import time

import pytest

import modelyard as my
from session import wire
from support.fake_service import KEY, MODEL, FakeService
from support.server import running


def _command(url: str, *lines: str, timeout: int = 60) -> list[str]:
    start = (
        "import modelyard as my",
        f"service = my.ServiceClient({url!r}, {KEY!r}, group='facts', timeout={timeout})",
        f"training = service.create_lora_training_client({MODEL!r})",
    )
    return [sys.executable, "-c", "\n".join([*start, *lines])]


def _script(url: str, *lines: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_command(url, *lines), capture_output=True, text=True, timeout=120)


def test_the_end_of_a_with_block_waits_for_what_has_no_result(url: str, fake: FakeService) -> None:
    with my.ServiceClient(url, KEY, group="facts", timeout=60) as service:
        training = service.create_lora_training_client(MODEL)
        saved = training.save_state()
    assert saved.done()
    assert saved.result().ref == "facts@1"
    with pytest.raises(my.ClientClosed):
        training.optim_step()


def test_an_exception_does_not_wait_and_what_it_cut_is_said(
    url: str, fake: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    fake.held = {1, 2}
    began = time.monotonic()
    steps: list[my.APIFuture[my.OptimStepResponse]] = []

    def fails_with_two_steps_open() -> None:
        with my.ServiceClient(url, KEY, timeout=300) as service:
            training = service.create_lora_training_client(MODEL)
            steps.extend([training.optim_step(), training.optim_step()])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails_with_two_steps_open()
    assert time.monotonic() - began < 60
    with pytest.raises(my.ClientClosed):
        steps[0].result()
    assert "closed before its result: 2 x optim_step" in caplog.messages


def test_waiting_ends_where_nothing_has_ended_for_the_timeout(
    url: str, fake: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    fake.held = {1}
    with my.ServiceClient(url, KEY, timeout=0.3) as service:
        service.create_lora_training_client(MODEL).save_merged()
    assert "closed before its result: save of merged" in caplog.messages


def test_a_failure_that_nobody_looked_at_is_said_once(
    url: str, fake: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    fake.failures = {n: wire.Failure("internal", f"disk {n} is full") for n in range(1, 7)}
    with my.ServiceClient(url, KEY, timeout=60) as service:
        training = service.create_lora_training_client(MODEL)
        saves = [training.save_state() for _ in range(6)]
        with pytest.raises(my.OperationFailed):
            saves[0].result()
    said = [line for _, level, line in caplog.record_tuples if level == logging.WARNING]
    assert len(said) == 4
    assert said[0].startswith("save of state failed, and its result was not looked at: disk 2 is f")
    assert said[-1] == "2 more calls failed"


def test_a_script_that_ends_has_saved(url: str, fake: FakeService) -> None:
    done = _script(url, "training.save_merged()")
    assert (done.returncode, done.stderr) == (0, "")
    assert isinstance(fake.log[0].body, wire.Save)


def test_a_custom_loss_still_runs_at_the_end_of_a_script(url: str, fake: FakeService) -> None:
    done = _script(
        url,
        "datum = my.Datum(my.ModelInput.from_ints([1]), {'target_tokens': [1]})",
        "training.forward_backward_custom([datum], lambda data, found: (found[0].sum(), {}))",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [type(sent.body) for sent in fake.log] == [wire.Forward, wire.ForwardBackward]


def test_a_script_that_dies_does_not_wait(url: str, fake: FakeService) -> None:
    fake.held = {1}
    done = _script(url, "training.save_merged()", "raise KeyError('mine')")
    assert done.returncode == 1
    assert "KeyError: 'mine'" in done.stderr
    assert done.stderr.endswith("closed before its result: save of merged\n")


def test_ctrl_c_while_the_end_waits_kills_the_script_as_anywhere_else(
    url: str, fake: FakeService
) -> None:
    fake.held = {1}
    lines = ("import atexit", "atexit.register(print, 'the last line')", "training.save_merged()")
    command = _command(url, *lines, timeout=300)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as script:
        assert script.stderr is not None
        assert "Ctrl-C ends that" in script.stderr.readline()
        script.send_signal(signal.SIGINT)
        out, err = script.communicate(timeout=60)
    assert script.returncode == -signal.SIGINT
    assert (out, err) == ("the last line\n", "closed before its result: save of merged\n")


def test_a_service_that_is_gone_is_said_and_not_waited_for_long(
    fake: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    fake.held = {1}
    with running(fake.app()) as url:
        service = my.ServiceClient(url, KEY, group="facts", timeout=300)
        saved = service.create_lora_training_client(MODEL).save_merged()
    with pytest.raises(TimeoutError):
        saved.result(2)  # it meets the outage
    service.close()
    assert isinstance(saved.exception(), my.ConnectionFailed)
    assert any("trying again for up to 300 s" in line for line in caplog.messages)
    assert f"nothing answers at {url}; closing gives up after 10 s" in caplog.messages
