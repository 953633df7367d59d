"""A migration in a process of its own, which is killed in the middle."""

import asyncio
import multiprocessing
import os
import signal
from pathlib import Path

from sqlalchemy import event
from sqlalchemy.engine import Engine

from registry.kit import migrate

_CHANGES = ("CREATE", "ALTER", "DROP", "INSERT", "UPDATE", "DELETE")


def upgrade_killed_after(statements: int, url: str, migrations: Path) -> bool:
    """Whether it was: False if it was through before it had made that many changes."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    process = processes.Process(target=_upgrade, args=(statements, url, migrations))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def _upgrade(statements: int, url: str, migrations: Path) -> None:
    left = statements

    @event.listens_for(Engine, "after_cursor_execute")
    def count(_: object, __: object, statement: str, *___: object) -> None:
        nonlocal left
        if statement.lstrip().upper().startswith(_CHANGES):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(migrate.upgrade(url, migrations))
