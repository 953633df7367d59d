"""What `modelyard gc` does, in rows that print. Imported only when it runs."""

import asyncio
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from registry.collection.report import Heap, Report
from registry.collection.service import collect
from registry.settings import Settings
from session.claims import CLAIMS
from session.cli.installation import load_settings, make_ready
from session.resources import open_database, open_store


def sweep(older_than: timedelta, *, dry_run: bool) -> dict[str, Any]:
    """Over all accounts."""
    report = asyncio.run(_collect(load_settings(), older_than, dry_run=dry_run))
    return {
        "dry_run": report.is_dry_run,
        "bytes_freed": report.bytes_freed,
        "garbage": [_row(kind, heap) for kind, heap in sorted(report.garbage.items())],
        "foreign": _row("foreign", report.foreign),
        "damaged": [
            {
                "account": each.account_id,
                "ref": each.ref,
                "path": each.path,
                "problem": each.problem,
            }
            for each in report.damaged
        ],
    }


async def _collect(settings: Settings, older_than: timedelta, *, dry_run: bool) -> Report:
    await make_ready(settings)
    database, store = open_database(settings), open_store(settings)
    try:
        return await collect(database, store, CLAIMS, older_than=older_than, dry_run=dry_run)
    finally:
        await database.close()


def _row(kind: str, heap: Heap) -> dict[str, Any]:
    return {"kind": kind, **asdict(heap)}
