"""The driver's connection that SQLAlchemy gets for SQLite: fewer turns, the same answers."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from registry.kit import sqlite
from registry.kit.db import Database
from registry.kit.trouble import DatabaseTrouble

TABLE = "CREATE TABLE t (x INTEGER PRIMARY KEY, y TEXT)"
STATEMENTS = [
    ("INSERT INTO t (y) VALUES (?)", ("a",)),
    ("INSERT INTO t (y) VALUES (?), (?)", ("b", "c")),
    ("UPDATE t SET y = 'd' WHERE x > ?", (1,)),
    ("INSERT INTO t (y) VALUES (?) RETURNING x, y", ("e",)),
    ("SELECT x, y FROM t ORDER BY x", ()),
    ("SELECT x FROM t WHERE x > 99", ()),
    ("DELETE FROM t WHERE x = 1", ()),
]


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database.connect(f"sqlite+aiosqlite:///{tmp_path}/test.db", busy_timeout_s=1)
    async with database.begin() as db:
        await db.execute(text(TABLE))
    yield database
    await database.close()


async def add(database: Database, value: str) -> None:
    async with database.begin() as db:
        await db.execute(text("INSERT INTO t (y) VALUES (:y)"), {"y": value})


async def values(database: Database) -> list[str]:
    async with database.ask() as db:
        return list((await db.scalars(text("SELECT y FROM t ORDER BY x"))).all())


async def test_a_statement_says_what_sqlite3_says_of_it() -> None:
    ours: Any = await sqlite.Connection(":memory:", isolation_level=None)
    theirs = sqlite3.connect(":memory:", isolation_level=None)
    for statement, given in [(TABLE, ()), *STATEMENTS]:
        found, expected = ours.cursor(), theirs.cursor()
        await found.execute(statement, given)
        expected.execute(statement, given)
        assert list(await found.fetchall()) == expected.fetchall()
        assert found.description == expected.description
        assert found.rowcount == expected.rowcount
        assert found.lastrowid == expected.lastrowid
        await found.close()
    many = [("f",), ("g",)]
    found, expected = ours.cursor(), theirs.cursor()
    await found.executemany("INSERT INTO t (y) VALUES (?)", many)
    expected.executemany("INSERT INTO t (y) VALUES (?)", many)
    assert found.rowcount == expected.rowcount == 2
    await ours.close()
    theirs.close()


async def test_a_writer_that_gave_up_waiting_holds_nothing_up(database: Database) -> None:
    async with database.begin() as db:
        await db.execute(text("INSERT INTO t (y) VALUES ('first')"))
        waiting = asyncio.create_task(add(database, "given up"))
        await asyncio.sleep(0.2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    for number in range(10):  # each connection of the pool
        await add(database, str(number))
    assert await values(database) == ["first", *map(str, range(10))]


async def test_a_transaction_that_fails_at_its_first_statement_is_over(database: Database) -> None:
    async with database.begin() as db:
        await db.execute(text("INSERT INTO t (y) VALUES ('held')"))
        with pytest.raises(DatabaseTrouble, match="locked"):
            await add(database, "in vain")
    await add(database, "after")
    assert await values(database) == ["held", "after"]


async def test_a_question_that_must_wait_leaves_the_loop_to_others(tmp_path: Path) -> None:
    """With a journal instead of WAL, whoever writes keeps readers out."""
    path = tmp_path / "journal.db"
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute(TABLE)
    writer.execute("BEGIN EXCLUSIVE")
    connection: Any = await sqlite.Connection(path, isolation_level=None, timeout=60)
    connection.begin(None, is_keyed=True)
    cursor = connection.cursor()
    asking = asyncio.create_task(cursor.execute("SELECT count(*) FROM t"))
    await asyncio.sleep(0.1)
    assert not asking.done()
    writer.execute("COMMIT")
    await asking
    assert await cursor.fetchall() == [(0,)]
    await connection.close()
    writer.close()


async def test_what_is_rolled_back_is_gone(database: Database) -> None:
    async def fails() -> None:
        async with database.begin() as db:
            await db.execute(text("INSERT INTO t (y) VALUES ('a')"))
            raise KeyError

    with pytest.raises(KeyError):
        await fails()
    async with database.begin():
        pass
    assert await values(database) == []


async def test_a_reader_has_one_moment_before_it_and_a_question_the_newest(
    database: Database,
) -> None:
    count = text("SELECT count(*) FROM t")
    async with database.read() as db:
        assert (await db.execute(count)).scalar_one() == 0
        await add(database, "meanwhile")
        assert (await db.execute(count)).scalar_one() == 0
    async with database.ask() as db:
        assert (await db.execute(count)).scalar_one() == 1
    async with database.begin() as db:  # nobody that reads holds a lock
        await db.execute(text("DROP TABLE t"))
