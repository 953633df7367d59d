"""Rows for any table, by what the database says of its columns: no table can be forgotten."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Connection,
    DateTime,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    Table,
    func,
    select,
)
from sqlalchemy.types import TypeEngine

from registry.kit.migrate import VERSION_TABLE

Contents = Mapping[str, list[tuple[Any, ...]]]
_START = datetime(2026, 1, 1, tzinfo=UTC)


def fill(connection: Connection, count: int) -> None:
    """Rows in every table that has none. Row `n` refers to the rows `n` of other tables, and to row
    `n - 1` of its own."""
    for table in _tables(connection):
        if not connection.scalar(select(func.count()).select_from(table)):
            connection.execute(table.insert(), [_row(table, n) for n in range(count)])
    connection.commit()


def counts(connection: Connection) -> dict[str, int]:
    found = {
        table.name: connection.scalar(select(func.count()).select_from(table)) or 0
        for table in _tables(connection)
    }
    connection.rollback()
    return found


def contents(connection: Connection, like: Contents | None = None) -> Contents:
    """What every table holds: first a row of its columns' names. With `like`, no more than the
    tables and columns that were there then."""
    held: dict[str, list[tuple[Any, ...]]] = {}
    for table in _tables(connection):
        if like is None:
            held[table.name] = _rows(connection, table, [column.name for column in table.columns])
        elif table.name in like:
            held[table.name] = _rows(connection, table, list(like[table.name][0]))
    connection.rollback()
    return held


def _rows(connection: Connection, table: Table, names: list[str]) -> list[tuple[Any, ...]]:
    query = select(*(table.columns[name] for name in names)).order_by(*table.primary_key.columns)
    return [tuple(names), *(tuple(row) for row in connection.execute(query))]


def _tables(connection: Connection) -> list[Table]:
    metadata = MetaData()
    metadata.reflect(connection)
    return [table for table in metadata.sorted_tables if table.name != VERSION_TABLE]


def _row(table: Table, n: int) -> dict[str, Any]:
    return {column.name: _value(column, n) for column in table.columns}


def _value(column: Column[Any], n: int) -> Any:
    for key in column.foreign_keys:
        if key.column.table is not column.table:
            return _value(key.column, n)
        return _value(key.column, n - 1) if n else None
    return _plain(column.type, f"{column.name}-{n:05}", n)


def _plain(form: TypeEngine[Any], text: str, n: int) -> Any:
    match form:
        case JSON():
            return {"n": n}
        case Boolean():
            return n % 2 == 0
        case DateTime():
            return _START + timedelta(seconds=n)
        case Integer() | Numeric() | Float():
            return n + 1
        case LargeBinary():
            return text.encode()
        case _:
            return text
