"""One installation as its operator sees it: settings, home, and a database ready for use."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

from pydantic import ValidationError
from sqlalchemy.ext.asyncio import AsyncSession

from registry.kit import migrate
from registry.kit.errors import Kind, ServiceError
from registry.settings import EngineSettings, Settings
from session.engine.local import LocalEngine
from session.engine.port import EngineError
from session.resources import open_database

T = TypeVar("T")
_SESSION = Path(__file__).parents[1]


class BadSetting(ServiceError):
    kind = Kind.invalid


class HomeNotWritable(ServiceError):
    kind = Kind.unavailable

    def __init__(self, home: Path, reason: str) -> None:
        super().__init__(
            f"the home {home} is not writable ({reason}); set MODELYARD_HOME to a folder that is"
        )


def load_settings(**given: Any) -> Settings:
    """The environment's, but for what is given and not None."""
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        found = error.errors()[0]
        name = "__".join(str(part) for part in found["loc"]).upper()
        raise BadSetting(f"MODELYARD_{name}: {found['msg']}") from None


def migrations() -> Path:
    """A wheel carries them inside `session`; a checkout has them at its root."""
    packed = _SESSION / "migrations"
    return packed if packed.is_dir() else _SESSION.parent / "migrations"


def open_home(settings: Settings) -> Path:
    home = settings.home_path()
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Nameless, as other processes of this installation may be asking at the same moment.
        with TemporaryFile(dir=home):
            pass
    except OSError as error:
        raise HomeNotWritable(home, error.strerror or str(error)) from None
    return home


def open_engine(settings: EngineSettings) -> LocalEngine:
    """The first thing of its process that imports torch."""
    # torch then has large pages for its large tensors: weights are read faster.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    try:
        return LocalEngine(**settings.model_dump())
    except EngineError as error:
        raise BadSetting(f"MODELYARD_ENGINE__DEVICE: {error}") from None


async def make_ready(settings: Settings) -> None:
    """The home and the schema this code needs: made if absent, refused if older or newer."""
    open_home(settings)
    await migrate.ensure(settings.database_url(), migrations())


def in_transaction(settings: Settings, work: Callable[[AsyncSession], Awaitable[T]]) -> T:
    async def run() -> T:
        await make_ready(settings)
        database = open_database(settings)
        try:
            async with database.begin() as db:
                return await work(db)
        finally:
            await database.close()

    return asyncio.run(run())
