"""Modelyard's registry, filled by SQL. What a version says depends on its number alone."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text

from benchmarks.rows import Row
from registry.access import service as access
from registry.access.actor import Actor, Role
from registry.kit import migrate
from registry.kit.db import Database
from registry.packages import service as packages
from registry.packages import writes
from registry.usage import service as usage
from registry.usage.model import Category
from support.packages import a_draft

GROUP, SMALLER, SMALLER_COUNT = "large", "smaller", 50_000
REGISTER, METERED = "register one more", 300
MIGRATIONS = Path(__file__).parents[2] / "migrations"

VERSIONS = """
INSERT INTO packages (
    id, account_id, group_id, version, kind, prefix, digest, size, base_model, base_digest, lora,
    session_id, operation_number, step, metrics, description, user_metadata, usage,
    approval, stage, revision, created_at, deleted_at, deleted_by, deleted_why
)
SELECT
    'pkg_' || CAST(:name AS text) || n, CAST(:account AS text), :group, n,
    CASE WHEN n % 20 = 0 THEN 'merged' WHEN n % 4 = 1 THEN 'state' ELSE 'adapter' END,
    CAST(:account AS text) || '/' || CAST(:name AS text) || '/pkg_' || n || '/',
    'sha256:' || md5(n::text) || md5(n::text), 4096,
    'tiny', 'sha256:00', '{"rank": 16, "alpha": 32, "targets": ["q_proj", "v_proj"], "seed": 1}',
    'ses_' || n / 1000, n % 1000, n % 1000,
    json_build_object('loss', 1.0 / n, 'reward', n % 7), 'run ' || n || ' of sweep ' || n % 977,
    '{"team": "research"}', '{"train": 1000}',
    CASE WHEN n % 50 = 0 THEN 'approved' WHEN n % 500 = 1 THEN 'rejected' ELSE 'pending' END,
    CASE WHEN n % 100000 = 3 THEN 'production' WHEN n % 1000 = 5 THEN 'staging'
         WHEN n % 10 = 1 THEN 'archived' ELSE 'none' END,
    1, timestamptz '2026-01-01' + n * interval '10 s',
    CASE WHEN n % 10 = 9 THEN timestamptz '2026-06-01' END,
    CASE WHEN n % 10 = 9 THEN 'admin' END, CASE WHEN n % 10 = 9 THEN '' END
FROM generate_series(1, CAST(:count AS integer)) n
"""
TAGS = """
INSERT INTO package_tags (package_id, tag, group_id, version)
SELECT id, 'nightly', group_id, version FROM packages WHERE group_id = :group AND version % 3 = 0
UNION ALL
SELECT id, 'golden', group_id, version FROM packages WHERE group_id = :group AND version % 50000 = 7
"""
ALIASES = """
INSERT INTO package_aliases
    (id, account_id, group_id, name, package_id, revision, is_protected, updated_at)
SELECT id || 'alias', account_id, group_id, 'alias-' || version / 10000, id, 1, false, created_at
FROM packages WHERE group_id = :group AND version % 10000 = 0
"""
COUNTER = """
UPDATE package_groups SET last_version = CAST(:count AS integer),
    last_version_at = (SELECT max(created_at) FROM packages WHERE group_id = :group)
WHERE id = :group
"""


@dataclass(frozen=True)
class Filled:
    url: str
    actor: Actor
    token: str


async def fill(url: str, count: int) -> Filled:
    """An empty database gets a group of `count` versions, and one of 50,000 beside it."""
    url = url.replace("postgresql://", "postgresql+psycopg://")
    await migrate.ensure(url, MIGRATIONS)
    database = Database.connect(url)
    async with database.begin() as db:
        account = await access.create_account(db, name="bench")
        _, token = await access.create_token(
            db, account_id=account.id, name="bench", role=Role.admin
        )
        actor = Actor(account.id, Role.admin)
        for name, size in ((GROUP, count), (SMALLER, SMALLER_COUNT)):
            group = await packages.create_group(db, actor, name)
            values = {"account": account.id, "group": group.id, "name": name, "count": size}
            for statement in (VERSIONS, TAGS, ALIASES, COUNTER):
                await db.execute(text(statement), values)
    async with database.engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        await connection.execute(text("VACUUM ANALYZE"))
    await database.close()
    return Filled(url, actor, token)


async def registrations(filled: Filled) -> dict[str, list[float]]:
    """Announce and publish, each in a transaction of its own, as a save does it."""
    database = Database.connect(filled.url)
    taken: dict[str, list[float]] = {}
    for name, question in ((GROUP, REGISTER), (SMALLER, f"{REGISTER} in {SMALLER_COUNT:,}")):
        taken[question] = [await _register(database, filled.actor, name) for _ in range(300)]
    await database.close()
    return taken


async def _register(database: Database, actor: Actor, group: str) -> float:
    draft, begin = a_draft(actor, group), time.perf_counter()
    async with database.begin() as db:
        paths = [file.path for file in draft.files]
        await writes.begin(db, actor, draft.id, prefix=draft.prefix, paths=paths)
    async with database.begin() as db:
        await packages.register(db, actor, group_name=group, draft=draft)
    return (time.perf_counter() - begin) * 1000


async def metering(filled: Filled) -> list[Row]:
    """Operations metered a second, each in a transaction of its own."""
    database = Database.connect(filled.url)
    rows = []
    for writers in (1, 8):
        begin = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for writer in range(writers):
                group.create_task(_meter(database, filled.actor, f"{writers}-{writer}"))
        rate = writers * METERED / (time.perf_counter() - begin)
        rows.append(Row(f"meter operations, {writers} at a time", rate, "1/s"))
    await database.close()
    return rows


async def _meter(database: Database, actor: Actor, name: str) -> None:
    for number in range(METERED):
        async with database.begin() as db:
            await usage.record(
                db,
                account_id=actor.account_id,
                operation_id=f"{name}-{number}",
                model="tiny",
                counts={Category.prefill: 100, Category.sample: 20},
            )
