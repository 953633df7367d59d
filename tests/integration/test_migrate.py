"""An installation meets its own past and future: schemas that are empty, older, newer, foreign."""

import asyncio
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import inspect, text

from registry.kit import migrate
from registry.kit.db import Base, Database
from registry.kit.migrate import SchemaState
from support.migrating import MIGRATIONS, differences, on, revisions, steer
from support.rows import contents, counts, fill

REVISION = """
from alembic import op
revision = "{name}"
down_revision = {down}
def upgrade():
    op.execute("CREATE TABLE {table} (id INTEGER PRIMARY KEY)")
    op.execute("{then}")
"""
FINE = "SELECT 1"


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


@both
async def test_a_migration_gives_up_on_a_lock_that_is_held(url: str, scripts: Path) -> None:
    await migrate.ensure(url, scripts)
    write(scripts, "two", "one", then="ALTER TABLE table_one ADD COLUMN more INTEGER")
    database = Database.connect(url)
    async with database.begin() as db:
        await db.execute(text("INSERT INTO table_one VALUES (1)"))
        with pytest.raises(migrate.DatabaseUnusable, match=r"failed: .*(lock timeout|is locked)"):
            await migrate.upgrade(url, scripts)
    await database.close()
    assert (await migrate.status(url, scripts)).found == "one"
    assert "table_two" not in await tables(url)
    assert (await migrate.upgrade(url, scripts)).found == "two"


async def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/absent/home.db"
    with pytest.raises(migrate.DatabaseUnusable, match=r"absent/home\.db cannot be used: No such"):
        await migrate.status(url, MIGRATIONS)


async def test_the_password_stays_out_of_the_message() -> None:
    url = "postgresql+psycopg://me:hush@127.0.0.1:1/db"
    with pytest.raises(migrate.DatabaseUnusable, match=r"me:\*\*\*@127.0.0.1") as caught:
        await migrate.status(url, MIGRATIONS)
    assert "hush" not in str(caught.value)


@both
async def test_rows_in_every_table_outlive_each_step_down_and_up(url: str) -> None:
    for revision in revisions():
        await on(url, steer, "upgrade", revision)
        await on(url, fill, 20)
    full = await on(url, counts)
    assert set(full) == set(Base.metadata.tables)
    assert set(full.values()) == {20}
    for revision in revisions()[-2::-1]:
        await on(url, steer, "downgrade", revision)
        assert set((await on(url, counts)).values()) == {20}
    left = await on(url, contents)
    await on(url, steer, "upgrade", "head")
    assert await on(url, contents, left) == left
    await on(url, steer, "downgrade", "base")
    assert await tables(url) == {migrate.VERSION_TABLE}


LISTS = "d1a0c3b5e708"
INDEX = "ix_packages_live_group_id_version"
OPTIONS = text("SELECT reloptions FROM pg_class WHERE relname = :name")
VALID = text("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)")


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
async def test_an_index_that_was_cut_off_is_built_again(url: str) -> None:
    await on(url, steer, "upgrade", f"{LISTS}-1")
    database = Database.connect(url)
    async with database.begin() as db:
        await db.execute(text(f"CREATE INDEX {INDEX} ON packages (group_id)"))
        broken = "UPDATE pg_index SET indisvalid = false WHERE indexrelid = to_regclass(:name)"
        await db.execute(text(broken), {"name": INDEX})
    await on(url, steer, "upgrade", "head")
    async with database.read() as db:
        assert await db.scalar(VALID, {"name": INDEX}) is True
    await database.close()
    assert await on(url, differences) == []


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
async def test_an_index_waits_no_longer_for_a_transaction_than_for_a_lock(url: str) -> None:
    await on(url, steer, "upgrade", f"{LISTS}-1")
    database = Database.connect(url)
    async with database.begin() as db:
        await db.execute(text("SELECT count(*) FROM packages"))
        with pytest.raises(migrate.DatabaseUnusable, match="lock timeout"):
            await migrate.upgrade(url, MIGRATIONS)
    await database.close()
    assert (await migrate.upgrade(url, MIGRATIONS)).state == SchemaState.current
    assert await on(url, differences) == []


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
async def test_a_user_who_may_add_no_extension_gets_all_but_the_index_of_texts(url: str) -> None:
    user = f"plain_{uuid.uuid4().hex[:8]}"
    await execute(
        url, f"CREATE ROLE {user} LOGIN", f"GRANT USAGE, CREATE ON SCHEMA public TO {user}"
    )
    schema = await migrate.ensure(url.replace("postgres@", f"{user}@"), MIGRATIONS)
    assert schema.state == SchemaState.current
    assert await on(url, differences) == []
    database = Database.connect(url)
    async with database.read() as db:
        assert await db.scalar(VALID, {"name": migrate.TEXT_INDEX}) is None
        assert await db.scalar(VALID, {"name": INDEX}) is True
    await database.close()
    await execute(url, f"DROP OWNED BY {user}", f"DROP ROLE {user}")


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
async def test_no_text_waits_for_its_index(url: str) -> None:
    """A search would go over all that wait."""
    await migrate.ensure(url, MIGRATIONS)
    database = Database.connect(url)
    async with database.read() as db:
        options = await db.scalar(OPTIONS, {"name": migrate.TEXT_INDEX})
    await database.close()
    assert options == ["fastupdate=off"]


async def execute(url: str, *statements: str) -> None:
    database = Database.connect(url)
    async with database.begin() as db:
        for statement in statements:
            await db.execute(text(statement))
    await database.close()
