"""Serving targets: how a directory of model files becomes a process that answers."""

from collections.abc import Mapping

from exporters.serving.base import Target
from exporters.serving.local import LocalTarget

TARGETS: Mapping[str, Target] = {"local": LocalTarget()}
