"""One real service for all tests of this folder: each works in a group of its own."""

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import openai
import pytest

import modelyard
from registry.kit import migrate
from registry.kit.db import Database
from support.migrating import MIGRATIONS
from support.service import Service, serving
from support.service import modelyard as command
from support.tiny import tiny_model
from support.training import chat_client, connect


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path}/home.db"
    found: str = request.getfixturevalue("postgres_url")
    return found.replace("postgresql://", "postgresql+psycopg://")


@pytest.fixture
async def migrated_url(empty_url: str) -> str:
    """Of one with the schema of the migrations."""
    await migrate.ensure(empty_url, MIGRATIONS)
    return empty_url


@pytest.fixture
async def migrated(migrated_url: str) -> AsyncIterator[Database]:
    database = Database.connect(migrated_url)
    yield database
    await database.close()


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tokenizers that clients fetch do not land in the home of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MODELYARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the base model `tiny`."""
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def service(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """It knows the base model `tiny`."""
    settings = {"MODELYARD_WEBHOOKS__ALLOW_PRIVATE": "true"}
    with serving(tmp_path_factory.mktemp("service") / "home", settings=settings) as service:
        done = command(service.home, "models", "add", "tiny", str(tiny))
        assert done.returncode == 0, done.stderr
        yield service


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[-60:].strip("-")


@pytest.fixture
def client(service: Service, group: str) -> Iterator[modelyard.ServiceClient]:
    with connect(service, group) as client:
        yield client


@pytest.fixture
def training(client: modelyard.ServiceClient) -> Iterator[modelyard.TrainingClient]:
    """A session on `tiny` with a fixed seed, stopped at the end."""
    training = client.create_lora_training_client("tiny", rank=4, seed=7)
    yield training
    training.stop()


@pytest.fixture(scope="session")
def chat(service: Service) -> Iterator[openai.OpenAI]:
    """The `openai` package on the service."""
    with chat_client(service) as chat:
        yield chat
