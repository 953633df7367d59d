"""The real model of tests and benchmarks: downloaded and converted once, into the model cache."""

import os
from collections.abc import Callable
from pathlib import Path

from registry.models import catalog

NAME = "smollm2-135m-instruct"


def real_model(say: Callable[[str], None] = lambda _: None) -> Path:
    models = Path(os.environ.get("MODELYARD_MODELS") or Path.home() / ".cache/modelyard/models")
    return catalog.fetch(NAME, models, say=say)
