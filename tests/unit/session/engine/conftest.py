"""Tiny bases, loaded once for all tests of the engine: nothing changes them."""

import pytest

from session.engine.compute.model import BaseModel, load_base
from session.engine.port import BaseRef
from support.tiny import tiny_ref


@pytest.fixture(scope="session")
def ref(tmp_path_factory: pytest.TempPathFactory) -> BaseRef:
    return tiny_ref(tmp_path_factory.mktemp("tied"))


@pytest.fixture(scope="session")
def untied(tmp_path_factory: pytest.TempPathFactory) -> BaseRef:
    return tiny_ref(tmp_path_factory.mktemp("untied"), tied=False)


@pytest.fixture(scope="session")
def base(ref: BaseRef) -> BaseModel:
    return load_base(ref)
