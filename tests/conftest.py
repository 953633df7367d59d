"""Fixtures that any test may use."""

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from registry.kit.db import Database
from support import s3
from support.database import fresh_database
from support.postgres import PostgresMissing, fresh_postgres, postgres_server
from support.s3 import S3Server, StoreMissing, credentials

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell that starts this in the background has it ignore Ctrl-C, and so would every process
    # that a test starts and then interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with fresh_database(tmp_path) as database:
        yield database


@pytest.fixture
async def db(database: Database) -> AsyncIterator[AsyncSession]:
    """One transaction, committed at the end of the test."""
    async with database.begin() as db:
        yield db


@pytest.fixture(scope="session")
def minio() -> Iterator[S3Server]:
    with credentials(), _or_skipped(s3.minio) as server:
        yield server


@pytest.fixture(scope="session")
def versitygw() -> Iterator[S3Server]:
    with credentials(), _or_skipped(s3.versitygw) as server:
        yield server


@contextmanager
def _or_skipped(start: Callable[[], AbstractContextManager[S3Server]]) -> Iterator[S3Server]:
    """A developer may lack a server. CI may not."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(start())
        except StoreMissing as reason:
            if os.environ.get("CI"):
                raise
            pytest.skip(str(reason))
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A real server's URL. A developer may lack one; CI may not."""
    try:
        with postgres_server() as url:
            yield url
    except PostgresMissing as reason:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(reason))


@pytest.fixture
def postgres_url(postgres: str) -> Iterator[str]:
    """An empty database of that server."""
    with fresh_postgres(postgres) as url:
        yield url
