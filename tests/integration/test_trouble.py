"""A database that is busy, gone or full is told from a statement that is wrong."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import bindparam, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, ProgrammingError
from sqlalchemy.ext.asyncio import create_async_engine

from registry.kit.db import Database
from registry.kit.trouble import DatabaseTrouble
from support.postgres import free_port


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    """With a table `t` of one column, of which a value is there once."""
    database = Database.connect(url, busy_timeout_s=1)
    async with database.begin() as db:
        await db.execute(text("CREATE TABLE t (x INTEGER PRIMARY KEY)"))
        await db.execute(text("INSERT INTO t VALUES (1), (2)"))
    yield database
    await database.close()


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[Database]:
    async with opened(f"sqlite+aiosqlite:///{tmp_path}/test.db") as database:
        yield database


@pytest.fixture
async def postgresql(postgres_url: str) -> AsyncIterator[Database]:
    async with opened(postgres_url.replace("postgresql://", "postgresql+psycopg://")) as database:
        yield database


async def run(database: Database, *statements: str) -> None:
    async with database.begin() as db:
        for statement in statements:
            await db.execute(text(statement))


WRONG = {
    "SELECT * FROM missing": (OperationalError, ProgrammingError),
    "SELEC 1": (OperationalError, ProgrammingError),
    "SELECT missing FROM t": (OperationalError, ProgrammingError),
    "INSERT INTO t VALUES (1)": (IntegrityError, IntegrityError),
}


@pytest.mark.parametrize("statement", WRONG)
async def test_a_statement_that_is_wrong_stays_an_error_of_ours(
    sqlite: Database, postgresql: Database, statement: str
) -> None:
    for database, expected in zip((sqlite, postgresql), WRONG[statement], strict=True):
        with pytest.raises(expected):
            await run(database, statement)


async def test_too_many_values_are_an_error_of_ours_though_the_driver_calls_it_operational(
    postgresql: Database,
) -> None:
    query = text("SELECT 1 WHERE 1 IN :many").bindparams(bindparam("many", expanding=True))
    async with postgresql.read() as db:
        with pytest.raises(DBAPIError):
            await db.execute(query, {"many": list(range(70_000))})


async def test_a_sqlite_writer_that_waited_in_vain_tells_of_a_busy_database(
    sqlite: Database,
) -> None:
    async with sqlite.begin() as db:
        await db.execute(text("INSERT INTO t VALUES (3)"))
        with pytest.raises(DatabaseTrouble, match="locked") as caught:
            await run(sqlite, "INSERT INTO t VALUES (4)")
    assert not caught.value.is_full


async def test_a_sqlite_file_that_may_not_grow_is_full(sqlite: Database) -> None:
    async with sqlite.engine.connect() as connection:
        await connection.exec_driver_sql("PRAGMA max_page_count = 3")
        await connection.commit()
    grow = text("INSERT INTO t SELECT 3 + value FROM json_each(:numbers)")
    with pytest.raises(DatabaseTrouble, match="full") as caught:
        async with sqlite.begin() as db:
            await db.execute(grow, {"numbers": json.dumps(list(range(10_000)))})
    assert caught.value.is_full


async def test_a_lock_that_another_holds_tells_of_a_busy_database(postgresql: Database) -> None:
    async with postgresql.begin() as db:
        await db.execute(text("LOCK TABLE t"))
        with pytest.raises(DatabaseTrouble, match="lock timeout"):
            await run(postgresql, "SET LOCAL lock_timeout = '50ms'", "INSERT INTO t VALUES (3)")


async def test_of_two_that_wait_for_each_other_one_is_told_to_try_again(
    postgresql: Database,
) -> None:
    both_hold = asyncio.Barrier(2)

    async def cross(first: int, second: int) -> None:
        async with postgresql.begin() as db:
            await db.execute(text(f"UPDATE t SET x = x WHERE x = {first}"))
            await both_hold.wait()
            await db.execute(text(f"UPDATE t SET x = x WHERE x = {second}"))

    ended = await asyncio.gather(cross(1, 2), cross(2, 1), return_exceptions=True)
    told = [each for each in ended if each is not None]
    assert [type(each) for each in told] == [DatabaseTrouble]
    assert "deadlock" in str(told[0])


async def test_a_connection_that_is_cut_tells_of_a_database_that_is_away(
    postgresql: Database,
) -> None:
    with pytest.raises(DatabaseTrouble, match="terminat"):
        await run(postgresql, "SELECT pg_terminate_backend(pg_backend_pid())", "SELECT 1")
    await run(postgresql, "SELECT 1")


async def test_a_server_that_is_not_there_is_away() -> None:
    database = Database.connect(f"postgresql+psycopg://me@127.0.0.1:{free_port()}/none")
    with pytest.raises(DatabaseTrouble, match="refused"):
        await run(database, "SELECT 1")
    await database.close()


async def test_a_database_whose_connections_are_all_taken_is_busy(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/test.db"
    engine = create_async_engine(url, pool_size=1, max_overflow=0, pool_timeout=0.01)
    database = Database(engine)
    async with database.begin() as db:
        await db.execute(text("SELECT 1"))
        with pytest.raises(DatabaseTrouble, match="every connection is taken"):
            await run(database, "SELECT 1")
    await database.close()
