"""`modelyard serve` as its operator meets it: what keeps it from starting, and how it ends."""

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from support.service import MODELYARD, Service, environment, modelyard, serving
from support.training import ADAM, batch, connect, eventually, get

ROOT = Path(__file__).parents[2]
REVISION = """
revision = "later"
down_revision = "{head}"
def upgrade():
    pass
"""


def refused(home: Path, *arguments: str) -> str:
    """Serve, and be told in one line why not."""
    done = modelyard(home, "serve", *arguments)
    assert done.returncode in (4, 5), done.stderr
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def is_gone(pid: int) -> bool:
    try:
        return "Z (zombie)" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_second_serve_on_the_same_home_names_the_first(service: Service) -> None:
    said = refused(service.home, "--port", "0")
    assert f"process {service.process.pid}" in said
    assert str(service.home) in said


def test_a_port_in_use_is_named_with_the_way_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(tmp_path / "home", "--port", str(port))
    assert f"127.0.0.1:{port}" in said
    assert "--port" in said
    assert not (tmp_path / "home" / "modelyard.db").exists()


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = refused(tmp_path / "file" / "home", "--port", "0")
    assert str(tmp_path / "file" / "home") in said
    assert "MODELYARD_HOME" in said


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert modelyard(home, "db", "upgrade").returncode == 0
    with sqlite3.connect(home / "modelyard.db") as database:
        database.execute("UPDATE modelyard_schema SET version_num = 'tomorrow'")
    database.close()
    said = refused(home, "--port", "0")
    assert "tomorrow" in said
    assert "newer" in said


def test_an_older_schema_is_refused_with_the_command_to_run(tmp_path: Path) -> None:
    """By a checkout that has one more migration."""
    home = tmp_path / "home"
    assert modelyard(home, "db", "upgrade").returncode == 0
    for part in ("modelyard", "session", "registry", "exporters", "migrations"):
        shutil.copytree(ROOT / part, tmp_path / "newer" / part)
    versions = tmp_path / "newer" / "migrations" / "versions"
    *_, last = sorted(versions.glob("*.py"))  # their names begin with their time
    head = next(line for line in last.read_text().splitlines() if line.startswith("revision"))
    (versions / "later.py").write_text(REVISION.format(head=head.split('"')[1]))

    def newer(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*MODELYARD, *arguments],
            env=environment(home),
            cwd=tmp_path / "newer",
            capture_output=True,
            text=True,
            check=False,
        )

    done = newer("serve", "--port", "0")
    assert done.returncode == 4
    assert "run: modelyard db upgrade" in done.stderr
    assert newer("db", "upgrade").returncode == 0
    assert "later" in refused(home, "--port", "0")


def test_credentials_are_the_owners_alone_and_follow_the_address(tmp_path: Path) -> None:
    with serving(tmp_path / "home") as first:
        path = first.home / "credentials"
        assert path.stat().st_mode & 0o777 == 0o600
        before = json.loads(path.read_text())
    with serving(tmp_path / "home") as second:
        after = json.loads(path.read_text())
        assert path.stat().st_mode & 0o777 == 0o600
        headers = {"Authorization": f"Bearer {after['api_key']}"}
        answer = httpx.get(f"{after['url']}/v1/models", headers=headers, trust_env=False)
    assert answer.status_code == 200
    assert after["api_key"] == before["api_key"]
    assert (after["url"], second.url) == (second.url, after["url"])
    log = first.log.read_text()
    assert before["api_key"] not in log


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_stops_both_processes(tmp_path: Path, name: signal.Signals) -> None:
    with serving(tmp_path / "home") as service:
        worker = service.worker_pid()
        assert service.stop(name) == 0
        assert is_gone(worker)
    log = service.log.read_text()
    assert "Traceback" not in log
    assert "worker.died" not in log


def test_a_terminal_s_interrupt_reaches_the_worker_through_serve_alone(tmp_path: Path) -> None:
    """Ctrl-C goes to every process of the terminal's group; the worker is in one of its own."""
    with serving(tmp_path / "home") as service:
        worker = service.worker_pid()
        assert os.getpgid(worker) != os.getpgid(service.process.pid)
        assert service.stop() == 0
        assert is_gone(worker)


def test_a_log_that_nobody_reads_any_more_stops_nothing(tmp_path: Path) -> None:
    """The reader of standard error ends; then the worker dies, which is to be logged."""
    home, output = tmp_path / "home", tmp_path / "output"
    reader, writer = os.pipe()
    with output.open("wb") as stdout:
        command = [*MODELYARD, "serve", "--port", "0"]
        process = subprocess.Popen(command, env=environment(home), stdout=stdout, stderr=writer)
    os.close(writer)
    try:
        service = Service(home, process, output)
        before = service.worker_pid()
        os.close(reader)
        service.kill_worker()
        eventually(lambda: is_gone(before) and service.worker_pid() != before)
        assert httpx.get(f"{service.url}/healthz", trust_env=False).status_code == 200
        assert service.stop() in (0, 120)  # 120: Python could not write out its standard error
    finally:
        process.kill()
        process.wait()


def test_a_serve_that_is_killed_leaves_no_process_and_no_lock(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with serving(home) as service:
        worker = service.worker_pid()
        service.process.kill()
        service.process.wait()
        eventually(lambda: is_gone(worker))
    with serving(home) as service:
        assert httpx.get(f"{service.url}/healthz", trust_env=False).status_code == 200


def test_a_worker_s_leftovers_go_when_the_next_one_starts(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "cache" / "worker" / "half").mkdir(parents=True)
    (home / "cache" / "worker" / "half" / "written").write_text("x")
    with serving(home) as service:
        service.worker_pid()
        eventually(lambda: not (home / "cache" / "worker" / "half").exists())


def test_credentials_that_are_damaged_are_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert modelyard(home, "db", "upgrade").returncode == 0
    (home / "credentials").write_text("")
    assert "credentials" in refused(home, "--port", "0")


def test_a_python_without_the_server_s_parts_is_told_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['uvicorn'] = None; "
        "from session.cli.root import main; main(['serve'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(tmp_path / "home"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "pip install 'modelyard[server,engine]'" in done.stderr


def test_what_is_held_when_the_service_stops_is_answered(tmp_path: Path, tiny: Path) -> None:
    """The operation waits for the one before it, which never comes."""
    with serving(tmp_path / "home") as service:
        assert modelyard(service.home, "models", "add", "tiny", str(tiny)).returncode == 0
        headers = {"Authorization": f"Bearer {service.api_key}"}
        with httpx.Client(
            base_url=service.url, headers=headers, trust_env=False, timeout=60
        ) as client:
            name = client.post("/v1/sessions", json={"base_model": "tiny"}).json()["id"]
            early = {"number": 2, "token": "t", "body": {"type": "clear_gradient"}}
            operation = client.post(f"/v1/sessions/{name}/operations", json=early).json()
            with ThreadPoolExecutor() as pool:
                path, sent = f"/v1/operations/{operation['id']}", threading.Event()

                def notice(event: str, _: object) -> None:
                    if event == "http11.send_request_body.complete":
                        sent.set()

                extensions = {"trace": notice}
                held = pool.submit(client.get, f"{path}?wait=25", extensions=extensions)
                assert sent.wait(60)
                client.get(path)  # answered after the other was read, which came before it
                assert service.stop() == 0
                assert held.result().status_code == 503
    assert "Traceback" not in service.log.read_text()


def test_a_session_says_that_it_is_being_restored_until_it_is(tmp_path: Path, tiny: Path) -> None:
    home = tmp_path / "home"
    with serving(home) as service:
        assert modelyard(home, "models", "add", "tiny", str(tiny)).returncode == 0
        with connect(service, "g") as client:
            training = client.create_lora_training_client("tiny", rank=4, seed=1, name="s")
            for seed in range(5):
                training.forward_backward(batch(seed))
                training.optim_step(ADAM).result()
    with serving(home) as service:
        service.worker_pid()
        eventually(lambda: get(service, "/v1/sessions/s")["restoring"] is False)
        assert get(service, "/v1/sessions/s")["step"] == 5
    restored = [line for line in service.log.read_text().splitlines() if "session.restored" in line]
    assert ["operations=11" in line for line in restored] == [True]
