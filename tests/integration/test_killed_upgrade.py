"""An upgrade of a filled database that is killed wherever it may be killed."""

import asyncio

from registry.kit import migrate
from registry.kit.migrate import SchemaState
from support.killed import upgrade_killed_after
from support.migrating import MIGRATIONS, differences, on, revisions, steer
from support.rows import contents, fill

FIRST = "a5db63d47c2c"


async def test_an_upgrade_killed_after_each_statement_is_taken_up_again(empty_url: str) -> None:
    await on(empty_url, steer, "upgrade", FIRST)
    await on(empty_url, fill, 1000)
    before = await on(empty_url, contents)
    assert sum(map(len, before.values())) > 10_000
    reached, statements = FIRST, 1
    while await asyncio.to_thread(upgrade_killed_after, statements, empty_url, MIGRATIONS):
        found = (await migrate.status(empty_url, MIGRATIONS)).found
        assert found in revisions()
        reached, statements = (found, 1) if found != reached else (reached, statements + 1)
    assert (await migrate.status(empty_url, MIGRATIONS)).state == SchemaState.current
    assert await on(empty_url, contents, before) == before
    assert await on(empty_url, differences) == []
