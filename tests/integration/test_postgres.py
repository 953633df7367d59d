"""The same service on PostgreSQL, where writers really run side by side."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import OperationalError

from registry.kit import migrate
from registry.kit.db import Base, Database
from registry.settings import Settings
from session.resources import open_database
from support.hosted import Hosted, hosted
from support.service import modelyard, serving
from support.training import batch, connect, get, prompt, step

MIGRATIONS = Path(__file__).parents[2] / "migrations"


@pytest.fixture
async def database(postgres_url: str, tmp_path: Path) -> AsyncIterator[Database]:
    """With the schema of the migrations."""
    settings = Settings(home=tmp_path, database={"url": postgres_url})
    await migrate.ensure(settings.database_url(), MIGRATIONS)
    database = open_database(settings)
    yield database
    await database.close()


@pytest.fixture
async def service(postgres_url: str, tiny: Path, tmp_path: Path) -> AsyncIterator[Hosted]:
    async with hosted(tmp_path / "home", model=tiny, database_url=postgres_url) as service:
        yield service


def downgrade(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    command.downgrade(config, "base")


def upgrade(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


async def test_the_migrations_go_down_and_up_again(database: Database) -> None:
    def names(connection: Connection) -> set[str]:
        return set(inspect(connection).get_table_names())

    async with database.engine.connect() as connection:
        await connection.run_sync(downgrade)
        assert await connection.run_sync(names) == {migrate.VERSION_TABLE}
        await connection.rollback()  # some of the steps upward begin their own transactions
        await connection.run_sync(upgrade)
        assert await connection.run_sync(names) == {*Base.metadata.tables, migrate.VERSION_TABLE}


# The service in this process, around an engine that computes nothing.


async def start(client: httpx.AsyncClient, name: str = "s1") -> None:
    await client.post("/v1/sessions", json={"base_model": "tiny", "name": name, "group": "g1"})
    assert (await client.get(f"/v1/sessions/{name}?wait=20")).json()["status"] == "running"


async def submit(client: httpx.AsyncClient, number: int, body: Any, token: str = "") -> Any:
    form = {"number": number, "token": token or f"t{number}", "body": body}
    return await client.post("/v1/sessions/s1/operations", json=form)


async def ended(client: httpx.AsyncClient, accepted: httpx.Response) -> Any:
    assert accepted.status_code == 202, accepted.text
    return (await client.get(f"/v1/operations/{accepted.json()['id']}?wait=20")).json()


FORWARD_BACKWARD = {
    "type": "forward_backward",
    "data": [
        {
            "tokens": {"dtype": "int64", "data": [5, 6]},
            "inputs": {"target_tokens": {"dtype": "int64", "data": [6, 7]}},
        }
    ],
}


async def test_operations_from_everywhere_at_once_run_once_and_in_order(service: Hosted) -> None:
    async with service.client() as client:
        await start(client)
        bodies = {
            n: {"type": "optim_step"} if n % 2 == 0 else FORWARD_BACKWARD for n in range(1, 21)
        }
        twice = [*bodies, *reversed(bodies)]
        answers = await asyncio.gather(*(submit(client, n, bodies[n]) for n in twice))
        assert len({answer.json()["id"] for answer in answers}) == 20
        assert (await client.get("/v1/sessions/s1")).json()["last_number"] == 20
        results = [await ended(client, answer) for answer in answers[:20]]
        steps = [each["result"]["metrics"]["step"] for each in results[1::2]]
        assert steps == list(range(1, 11))
        assert (await client.get("/v1/usage/totals")).json()["tokens"]["train"] == 20


async def test_of_two_bodies_for_one_number_one_wins(service: Hosted) -> None:
    async with service.client() as client:
        await start(client)
        rates = [{"type": "optim_step", "learning_rate": n / 10} for n in range(8)]
        calls = (submit(client, 1, body, f"t{n}") for n, body in enumerate(rates))
        codes = sorted(answer.status_code for answer in await asyncio.gather(*calls))
        assert codes == [202, *[409] * 7]


async def test_nothing_is_accepted_that_a_stop_has_overtaken(service: Hosted) -> None:
    """Whatever the race, each accepted operation ends."""
    async with service.client() as client:
        await start(client)
        clear = {"type": "clear_gradient"}
        stop = client.post("/v1/sessions/s1/stop")
        submits = [submit(client, n, clear) for n in range(1, 13)]
        *answers, _ = await asyncio.gather(*submits[:6], stop, *submits[6:])
        assert (await client.get("/v1/sessions/s1?wait=20")).json()["status"] == "stopped"
        for answer in [
            each for each in answers if each.status_code == 202 and "number" in each.json()
        ]:
            assert (await ended(client, answer))["status"] in ("completed", "skipped")


async def test_one_name_and_one_token_are_taken_once(service: Hosted) -> None:
    async with service.client() as client:
        await start(client)
        wanted = {"base_model": "tiny", "name": "same", "group": "new"}
        made = await asyncio.gather(*(client.post("/v1/sessions", json=wanted) for _ in range(8)))
        assert sorted(answer.status_code for answer in made) == [201, *[409] * 7]
        form = {"session": "s1", "token": "one", "prompt": {"dtype": "int64", "data": [5]}}
        asked = (client.post("/v1/samples", json={**form, "max_tokens": 3}) for _ in range(8))
        answers = await asyncio.gather(*asked)
        assert {answer.status_code for answer in answers} <= {200, 503}
        again = await client.post("/v1/samples", json={**form, "max_tokens": 3})
        assert again.status_code == 200
        tokens = (await client.get("/v1/usage/totals")).json()["tokens"]
        assert (tokens["prefill"], tokens["sample"]) == (1, 3)


async def test_a_step_is_measured_while_its_client_logs_the_same_names(service: Hosted) -> None:
    async with service.client() as client:
        await start(client)
        for number in range(1, 11):
            step_number = (number + 1) // 2
            body = FORWARD_BACKWARD if number % 2 else {"type": "optim_step"}
            logged = {"step": step_number, "metrics": {"loss": 1.0, "grad_norm": 2.0}}
            accepted, *answers = await asyncio.gather(
                submit(client, number, body),
                *(client.post("/v1/sessions/s1/metrics", json=logged) for _ in range(4)),
            )
            assert {answer.status_code for answer in answers} == {204}
            assert (await ended(client, accepted))["status"] == "completed"
        assert (await client.get("/v1/sessions/s1")).json()["status"] == "running"


NUL_BODIES: tuple[Any, ...] = (
    *({"version": "g@1", "step": 1}, {"version": 1}, {"approval": "approved"}, {}),
)


async def test_a_nul_in_a_name_is_unknown_and_never_an_error(service: Hosted) -> None:
    async with service.client() as client:
        await start(client)
        paths = (await client.get("/openapi.json")).json()["paths"]
        for path, methods in paths.items():
            url = "/".join("%00" if part.startswith("{") else part for part in path.split("/"))
            for method in methods if "%00" in url else ():
                for body in NUL_BODIES:
                    answer = await client.request(
                        method, url, json=body, headers={"If-Match": '"1"'}
                    )
                    assert answer.status_code in (400, 404, 422), (method, url, answer.text)
        form = {"token": "t", "prompt": {"dtype": "int64", "data": [5]}, "max_tokens": 1}
        for source in ("model", "session", "source", "weights"):
            answer = await client.post("/v1/samples", json={**form, source: "\0"})
            assert answer.status_code in (404, 422), answer.text
        for place, body in (
            ("sessions", {"base_model": "\0"}),
            ("sessions", {"base_model": "tiny", "group": "\0"}),
            ("sessions/s1/metrics", {"step": 1, "metrics": {"\0": 1.0}}),
            (
                "sessions/s1/operations",
                {"number": 1, "token": "\0", "body": {"type": "clear_gradient"}},
            ),
            ("groups", {"name": "g2", "description": "\0"}),
        ):
            answer = await client.post(f"/v1/{place}", json=body)
            assert answer.status_code in (400, 404, 422), answer.text


async def test_a_database_that_breaks_off_is_waited_for(service: Hosted) -> None:
    """Every connection is cut, again and again, while a session works."""
    async with service.client() as client:
        await start(client)
        for number in range(1, 9):
            await cut_connections(service.database)
            body = FORWARD_BACKWARD if number % 2 else {"type": "optim_step"}
            accepted = await patiently(lambda n=number, b=body: submit(client, n, b))
            found = {"status": "pending"}
            while found["status"] in ("pending", "running"):
                url = f"/v1/operations/{accepted.json()['id']}?wait=1"
                found = (await patiently(lambda u=url: client.get(u))).json()
            assert found["status"] == "completed"
        assert (await client.get("/v1/usage/totals")).json()["tokens"]["train"] == 8


async def cut_connections(database: Database) -> None:
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    where = " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    try:
        async with database.engine.connect() as connection:
            await connection.execute(text(others + where))
    except OperationalError:
        return


async def patiently(call: Any) -> httpx.Response:
    while True:
        answer: httpx.Response = await call()
        if answer.status_code != 503:
            return answer
        assert answer.json()["title"] == "DatabaseAway"
        await asyncio.sleep(0.1)


# The whole, with real processes.


def test_a_whole_service_trains_saves_and_samples(
    postgres_url: str, tiny: Path, tmp_path: Path
) -> None:
    home, settings = tmp_path / "home", {"MODELYARD_DATABASE__URL": postgres_url}
    with serving(home, settings=settings) as service:
        added = modelyard(home, "models", "add", "tiny", str(tiny), settings=settings)
        assert added.returncode == 0, added.stderr
        with connect(service, "g1") as client:
            training = client.create_lora_training_client("tiny", rank=4, name="mine")
            losses = [step(training, batch(1)) for _ in range(3)]
            assert losses[2] < losses[0]
            assert training.save_state().result().ref == "g1@1"
            service.kill_worker()
            sampler = training.save_weights_and_get_sampling_client()
            assert sampler.sample(prompt([5, 6])).result().sequences[0].tokens
            assert client.merge("g1@1").result().kind == "merged"
        assert not list(home.glob("*.db"))
        assert service.stop(signal.SIGTERM) == 0
    with serving(home, settings=settings) as service:
        assert get(service, "/v1/sessions/mine")["step"] == 3
        assert len(get(service, "/v1/groups/g1/versions")["data"]) == 2
    assert "postgres@" not in service.log.read_text()
