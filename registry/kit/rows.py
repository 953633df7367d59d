"""Rows added by one statement, whether or not some are there already. Both databases have it, each
in a dialect of its own; and it goes past the bookkeeping of objects."""

from functools import cache
from typing import cast

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from registry.kit.db import Base

_Insert = sqlite.Insert | postgresql.Insert


@cache
def insert_missing(dialect: str, model: type[Base]) -> _Insert:
    """A row that is there stays as it is."""
    return _insert(dialect, model).on_conflict_do_nothing()


@cache
def insert_or_replace(dialect: str, model: type[Base]) -> _Insert:
    """A row that is there, by its primary key, gets the new values."""
    made = _insert(dialect, model)
    keys = [column.name for column in made.table.primary_key]
    values = {column.name: column for column in made.excluded if column.name not in keys}
    return made.on_conflict_do_update(index_elements=keys, set_=values)


def dialect_of(db: AsyncSession) -> str:
    return db.get_bind().dialect.name


def _insert(dialect: str, model: type[Base]) -> _Insert:
    made = sqlite.insert if dialect == "sqlite" else postgresql.insert
    return made(cast(Table, model.__table__))
