"""An installation meets its own past and future: schemas that are empty, older, newer, foreign."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect, text

import session.lifecycle.model
import session.merges.model
import session.operations.model
import session.sampling.model  # noqa: F401
from registry.kit import migrate
from registry.kit.db import Base, Database
from registry.kit.migrate import SchemaState

MIGRATIONS = Path(__file__).parents[2] / "migrations"
REVISION = """
from alembic import op
revision = "{name}"
down_revision = {down}
def upgrade():
    op.execute("CREATE TABLE {table} (id INTEGER PRIMARY KEY)")
    op.execute("{then}")
"""
FINE = "SELECT 1"
FIRST = "a5db63d47c2c"


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite+aiosqlite:///{tmp_path}/home.db"
        return
    found: str = request.getfixturevalue("postgres_url")
    yield found.replace("postgresql://", "postgresql+psycopg://")


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """The project's own env.py over versions that a test writes."""
    (tmp_path / "migrations" / "versions").mkdir(parents=True)
    shutil.copy(MIGRATIONS / "env.py", tmp_path / "migrations")
    write(tmp_path / "migrations", "one", None)
    return tmp_path / "migrations"


def write(scripts: Path, name: str, down: str | None, *, then: str = FINE) -> None:
    body = REVISION.format(name=name, down=repr(down), table=f"table_{name}", then=then)
    (scripts / "versions" / f"{name}.py").write_text(body)


async def tables(url: str) -> set[str]:
    database = Database.connect(url)
    async with database.engine.connect() as connection:
        names = await connection.run_sync(lambda held: inspect(held).get_table_names())
    await database.close()
    return set(names)


both = pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)


@both
async def test_an_empty_database_is_migrated_without_asking(url: str, scripts: Path) -> None:
    assert (await migrate.status(url, scripts)).state == SchemaState.empty
    schema = await migrate.ensure(url, scripts)
    assert (schema.state, schema.found) == (SchemaState.current, "one")
    assert await tables(url) == {"table_one", "modelyard_schema"}
    assert await migrate.ensure(url, scripts) == schema


@both
async def test_many_starts_at_once_migrate_once(url: str, scripts: Path) -> None:
    found = await asyncio.gather(*(migrate.ensure(url, scripts) for _ in range(5)))
    assert {schema.found for schema in found} == {"one"}


@both
async def test_an_older_schema_is_refused_with_the_command_to_run(url: str, scripts: Path) -> None:
    await migrate.ensure(url, scripts)
    write(scripts, "two", "one")
    with pytest.raises(migrate.SchemaOutdated, match=r"one.*two; run: modelyard db upgrade"):
        await migrate.ensure(url, scripts)
    assert "table_two" not in await tables(url)
    assert (await migrate.upgrade(url, scripts)).found == "two"
    assert "table_two" in await tables(url)


@both
async def test_a_newer_schema_is_refused_and_left_alone(url: str, scripts: Path) -> None:
    write(scripts, "two", "one")
    await migrate.ensure(url, scripts)
    (scripts / "versions" / "two.py").unlink()
    for attempt in (migrate.ensure, migrate.upgrade):
        with pytest.raises(migrate.SchemaNewer, match="two"):
            await attempt(url, scripts)


@both
async def test_a_database_of_another_program_is_refused(url: str, scripts: Path) -> None:
    database = Database.connect(url)
    async with database.begin() as db:
        await db.execute(text("CREATE TABLE theirs (id INTEGER)"))
    await database.close()
    for attempt in (migrate.ensure, migrate.upgrade):
        with pytest.raises(migrate.SchemaForeign, match="a database of its own"):
            await attempt(url, scripts)


@both
async def test_a_failing_migration_leaves_the_one_before(url: str, scripts: Path) -> None:
    write(scripts, "two", "one", then="SELECT 1 FROM nowhere")
    with pytest.raises(migrate.DatabaseUnusable, match=r"the migration failed: .*nowhere"):
        await migrate.ensure(url, scripts)
    assert (await migrate.status(url, scripts)).found == "one"
    assert "table_two" not in await tables(url)


@both
async def test_the_migrations_make_what_the_models_say(url: str) -> None:
    await migrate.ensure(url, MIGRATIONS)
    database = Database.connect(url)
    async with database.engine.connect() as connection:
        assert await connection.run_sync(differences) == []
    await database.close()


def differences(connection: Connection) -> list[object]:
    options = {"version_table": migrate.VERSION_TABLE, "compare_server_default": True}
    context = MigrationContext.configure(connection, opts=options)
    found: list[object] = compare_metadata(context, Base.metadata)
    return found


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
async def test_a_migration_gives_up_on_a_lock_that_is_held(url: str, scripts: Path) -> None:
    await migrate.ensure(url, scripts)
    write(scripts, "two", "one", then="ALTER TABLE table_one ADD COLUMN more INTEGER")
    database = Database.connect(url)
    async with database.begin() as db:
        await db.execute(text("LOCK TABLE table_one"))
        with pytest.raises(migrate.DatabaseUnusable, match="lock timeout"):
            await migrate.upgrade(url, scripts)
    await database.close()


async def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/absent/home.db"
    with pytest.raises(migrate.DatabaseUnusable, match=r"absent/home\.db cannot be used: No such"):
        await migrate.status(url, MIGRATIONS)


async def test_the_password_stays_out_of_the_message() -> None:
    url = "postgresql+psycopg://me:hush@127.0.0.1:1/db"
    with pytest.raises(migrate.DatabaseUnusable, match=r"me:\*\*\*@127.0.0.1") as caught:
        await migrate.status(url, MIGRATIONS)
    assert "hush" not in str(caught.value)


FILLED = (
    "INSERT INTO accounts VALUES ('acc', 'a', '2026-01-01')",
    "INSERT INTO package_groups VALUES ('grp', 'acc', 'g', '', 1, '2026-01-01')",
    "INSERT INTO packages VALUES ('pkg', 'acc', 'grp', 1, 'adapter', 'p/', 'sha256:0', 1, 'tiny',"
    " 'sha256:0', '{}', NULL, NULL, NULL, 0, '{}', '', '{}', '{}', 'approved', '2026-01-01')",
    "INSERT INTO package_files VALUES ('pkg', 'checkpoints/hf/a.json', 1, '00')",
)


def steer(connection: Connection, direction: str, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    getattr(command, direction)(config, revision)


async def columns(database: Database, table: str) -> set[str]:
    async with database.engine.connect() as connection:
        found = await connection.run_sync(lambda held: inspect(held).get_columns(table))
    return {column["name"] for column in found}


@both
async def test_a_filled_database_goes_up_down_and_up_again(url: str) -> None:
    database = migrate.connect(url)
    async with database.engine.connect() as connection:
        await connection.run_sync(steer, "upgrade", FIRST)
    before = await columns(database, "packages"), await tables(url)
    async with database.begin() as db:
        for statement in FILLED:
            await db.execute(text(statement))
    for direction, revision in (("upgrade", "head"), ("downgrade", FIRST), ("upgrade", "head")):
        async with database.engine.connect() as connection:
            await connection.run_sync(steer, direction, revision)
        if direction == "downgrade":
            assert (await columns(database, "packages"), await tables(url)) == before
        else:
            async with database.begin() as db:
                found = await db.execute(text("SELECT approval, stage, revision FROM packages"))
                assert [tuple(row) for row in found] == [("approved", "none", 1)]
                assert await db.scalar(text("SELECT count(*) FROM package_files")) == 1
    await database.close()
