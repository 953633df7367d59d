"""Every query is bound to an account where it is made, or docs/architecture.md says why not."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from registry.kit.db import Base
from session import app

ROOT = Path(__file__).parents[2]
STATEMENTS = {"select", "insert", "update", "delete", "insert_missing", "insert_or_replace"}
MAKERS = ("sqlalchemy", "registry.kit.rows")
BY_KEY = {"get", "get_one"}
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def test_what_asks_over_all_accounts_is_listed_with_its_reason() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    listed = re.findall(r"^\| `((?:registry|session)\.[\w.]+)` \| \w.+ \|$", page, re.MULTILINE)
    assert sorted(listed) == sorted(_unbound())


def test_a_table_has_its_account_or_belongs_to_a_row_that_has() -> None:
    """By what the database says: so a new table cannot be forgotten."""
    assert app
    above = {"accounts", "base_models", "workers"}
    for table in Base.metadata.sorted_tables:
        owners = {key.column.table.name for key in table.foreign_keys}
        assert "account_id" in table.c or table.name in above or owners - above, table.name


def _unbound() -> Iterator[str]:
    """The classes and functions with a query of which no account is fixed."""
    for package in ("registry", "session"):
        for path in sorted((ROOT / package).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            body = ast.parse(path.read_text()).body
            makers = _imported(body) & STATEMENTS
            yield from (
                f"{module}.{found.name}"
                for found in body
                if isinstance(found, Definition)
                if _asks(found, makers) and not _is_bound(found, path)
            )


def _imported(body: list[ast.stmt]) -> set[str]:
    return {
        name.name
        for each in body
        if isinstance(each, ast.ImportFrom) and each.module in MAKERS
        for name in each.names
    }


def _asks(found: Definition, makers: set[str]) -> bool:
    calls = [each.func for each in ast.walk(found) if isinstance(each, ast.Call)]
    return any(
        (isinstance(call, ast.Name) and call.id in makers)
        or (
            isinstance(call, ast.Attribute)
            and call.attr in BY_KEY
            and ast.unparse(call.value) in ("db", "self._db")
        )
        for call in calls
    )


def _is_bound(found: Definition, path: Path) -> bool:
    """A part of a statement, which a class beside it makes whole, is bound by that."""
    if isinstance(found, ast.ClassDef):
        return any(
            argument.arg == "account_id" and ast.unparse(argument.annotation or argument) == "str"
            for each in found.body
            if isinstance(each, ast.FunctionDef) and each.name == "__init__"
            for argument in each.args.args
        )
    return found.name.startswith("_") and path.name.endswith("repository.py")
