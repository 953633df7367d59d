"""`modelyard db backup`: a whole copy, or nothing."""

import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any


def test_the_copy_is_whole_while_a_writer_is_in_the_middle(modelyard: Any, tmp_path: Path) -> None:
    modelyard("accounts", "create", "before")
    database, copy = tmp_path / "home" / "modelyard.db", tmp_path / "copy.db"
    with closing(sqlite3.connect(database)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE accounts SET name = 'half done'")
        ended = modelyard("db", "backup", str(copy))
        writer.rollback()
    assert (ended.code, ended.err.splitlines()[-1]) == (0, f"{copy}: {copy.stat().st_size:,} bytes")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    with closing(sqlite3.connect(copy)) as found:
        assert found.execute("SELECT name FROM accounts").fetchall() == [("before",)]
        assert found.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_what_is_there_is_not_overwritten(modelyard: Any, tmp_path: Path) -> None:
    modelyard("db", "upgrade")
    (tmp_path / "copy.db").write_text("mine")
    ended = modelyard("db", "backup", str(tmp_path / "copy.db"))
    assert ended.code == 4
    assert (tmp_path / "copy.db").read_text() == "mine"


def test_without_a_database_nothing_is_made(modelyard: Any, tmp_path: Path) -> None:
    ended = modelyard("db", "backup", str(tmp_path / "copy.db"))
    assert ended.code == 5
    assert "modelyard.db cannot be used" in ended.err
    assert list(tmp_path.glob("*copy*")) == []
    assert not (tmp_path / "home").exists()


def test_a_folder_that_is_not_there_is_named(modelyard: Any, tmp_path: Path) -> None:
    modelyard("db", "upgrade")
    ended = modelyard("db", "backup", str(tmp_path / "none" / "copy.db"))
    assert ended.code == 1
    assert ended.err.splitlines()[-1] == f"modelyard: there is no directory {tmp_path / 'none'}"


def test_postgresql_is_left_to_its_own_program(modelyard: Any, tmp_path: Path) -> None:
    url = "postgresql://nobody@127.0.0.1:1/none"
    ended = modelyard("db", "backup", str(tmp_path / "x"), MODELYARD_DATABASE__URL=url)
    assert ended.code == 4
    assert "pg_dump" in ended.err
