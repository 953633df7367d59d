"""What `modelyard doctor` looks at, in rows that print. Imported only when it runs."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

from sqlalchemy import text

from registry.artifacts.bucket import Bucket, lifecycle_rule
from registry.artifacts.doctor import (
    Finding,
    Verdict,
    check_clock,
    examine_bucket,
    examine_folder,
    finding,
)
from registry.kit import migrate
from registry.kit.db import Database
from registry.kit.errors import ServiceError
from registry.kit.migrate import SchemaState
from registry.settings import Settings
from session.cli.installation import load_settings, migrations, open_home
from session.resources import bucket_of, open_database

_SPELT = {"name": "BUCKET"}
_TUNING = ("attempts", "concurrency", "part_bytes")
_ADVICE = {
    SchemaState.older: "run: modelyard db upgrade",
    SchemaState.newer: "a newer modelyard made it; install that one",
    SchemaState.foreign: "its tables are not modelyard's; give it a database of its own",
}


def examine() -> dict[str, Any]:
    """The checks, whether all that must work does, and the settings that made it so."""
    settings = load_settings()
    open_home(settings)
    found = list(_database(settings))
    bucket = bucket_of(settings.objects)
    if bucket is None:
        found += examine_folder(settings.objects_path())
        chosen = {"MODELYARD_HOME": str(settings.home)}
        rule = None
    else:
        tried, works = examine_bucket(bucket)
        found += tried
        chosen, rule = _variables(works, bucket), lifecycle_rule(works)
    ok = all(each.verdict is not Verdict.fails for each in found)
    return {
        "ok": ok,
        "checks": [{**asdict(each), "verdict": each.verdict.value} for each in found],
        "settings": chosen if ok else {},
        "lifecycle_rule": rule if ok else None,
    }


def _database(settings: Settings) -> Iterator[Finding]:
    try:
        schema = asyncio.run(migrate.status(settings.database_url(), migrations()))
    except ServiceError as error:
        yield Finding("database: reach", Verdict.fails, str(error))
        return
    took, theirs = asyncio.run(_round_trip(open_database(settings)))
    yield Finding("database: reach", Verdict.works, f"{took * 1000:.1f} ms there and back")
    advice = _ADVICE.get(schema.state)
    state = f"{schema.state}: found {schema.found or 'none'}, needed {schema.head or 'none'}"
    verdict = Verdict.fails if advice else Verdict.works
    yield Finding("database: schema", verdict, f"{state}; {advice}" if advice else state)
    if theirs is not None:
        yield finding("database: clock", lambda: check_clock(theirs))


async def _round_trip(database: Database) -> tuple[float, datetime | None]:
    """The second of two: the first one also connects. SQLite's clock is this machine's."""
    has_clock = database.engine.dialect.name == "postgresql"
    query = text("SELECT clock_timestamp()" if has_clock else "SELECT 1")
    try:
        async with database.engine.connect() as connection:
            await connection.execute(query)
            start = time.perf_counter()
            found = (await connection.execute(query)).scalar_one()
            return time.perf_counter() - start, found if has_clock else None
    finally:
        await database.close()


def _variables(works: Bucket, given: Bucket) -> dict[str, str]:
    """As the environment wants them. What only tunes is left as it is."""
    chosen = {
        field.name: getattr(works, field.name)
        for field in fields(works)
        if field.name not in _TUNING or getattr(given, field.name) != field.default
    }
    return {
        f"MODELYARD_OBJECTS__{_SPELT.get(name, name.upper())}": _words(value)
        for name, value in chosen.items()
        if value not in (None, "")
    }


def _words(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
