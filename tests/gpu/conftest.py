"""Tests that need a GPU select themselves: elsewhere they are no part of the run."""

from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mine = [item for item in items if item.path.is_relative_to(HERE)]
    for item in mine:
        item.add_marker(pytest.mark.gpu)
    if mine and not torch.cuda.is_available():
        config.hook.pytest_deselected(items=mine)
        items[:] = [item for item in items if item not in mine]
