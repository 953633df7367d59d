"""Checks of what strangers send, in a process of their own: chat templates run there, and JSON is
parsed, within limits of time and memory. Whatever happens to it, the one that asks goes on.

As a program it takes a question as JSON and answers in the same way.
"""

import gc
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from exporters import directory
from exporters.base import BadFile, OutOfTime, read_json
from exporters.chat_template import read_templates, read_tokenizer_config
from exporters.directory import ADAPTER, MERGED, Content, Layout
from exporters.fit import fit_adapter, fit_merged
from exporters.shards import CONFIG, HEAD, Shards, embedding_name, read_shards

CPU_S = 10
WALL_S = 60
MEMORY = 2 * 2**30
_ENDED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_ANSWER = 16 * 2**20
_AT_ONCE = threading.BoundedSemaphore(2)
_ROOT = Path(__file__).parents[1]
# What it may see of our surroundings: no secret. Each thread would take address space.
_PASSED = ("PATH", "LD_LIBRARY_PATH", "LANG", "TZ")
_SMALL = {"MALLOC_ARENA_MAX": "2", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def examine(folder: Path, kind: str) -> dict[str, Any]:
    """Everything that needs no base: `lora` (empty without an adapter), `step`, `whole`, and
    `templates`, the parts that have a chat template in their tokenizer's configuration."""
    return _ask({"folder": str(folder), "kind": kind}, "files")


def fit(folder: Path, kind: str, base: Path) -> None:
    """Compare with the base, which lies at `base`."""
    _ask({"folder": str(folder), "kind": kind, "base": str(base)}, "chat template or tokenizer")


def _ask(question: Mapping[str, str], named: str) -> dict[str, Any]:
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    with _AT_ONCE, tempfile.TemporaryFile() as answer:
        try:
            subprocess.run(
                [sys.executable, "-m", __name__],
                input=json.dumps(question).encode(),
                stdout=answer,
                stderr=subprocess.DEVNULL,
                env={**passed, **_SMALL, "PYTHONPATH": str(_ROOT)},
                timeout=WALL_S,
                check=True,
                start_new_session=True,  # Ctrl-C is for us, and we wait
            )
        except subprocess.SubprocessError as error:
            if isinstance(error, subprocess.CalledProcessError) and -error.returncode in _ENDED:
                raise InterruptedError("a check was ended from outside") from None
            reason = "cannot be checked: that takes too much time or memory"
            raise BadFile(named, reason) from None
        answer.seek(0)
        found: dict[str, Any] = json.loads(answer.read(_ANSWER))
    if "trouble" in found:  # ours: the disk, say
        raise OSError(found["trouble"])
    if "refused" in found:
        raise BadFile(*found["refused"])
    return found


def main() -> None:
    question = json.loads(sys.stdin.buffer.read())
    _confine()
    try:
        answer = _answer(Path(question["folder"]), question["kind"], question.get("base"))
    except BadFile as error:
        answer = {"refused": [error.file, error.reason]}
    except OSError as error:
        answer = {"trouble": str(error)}
    sys.stdout.write(json.dumps(answer))


def _confine() -> None:
    """Python code hears of its end and names what it was at; other code is killed soon after.

    What our own start took does not count: on a busy machine that is seconds.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise OutOfTime(f"it takes more than {CPU_S} s of processor time")

    gc.disable()  # it would walk over millions of objects again and again, and little lives long
    signal.signal(signal.SIGXCPU, stop)
    limit = math.ceil(time.process_time()) + CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 2))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_ANSWER, _ANSWER))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _answer(folder: Path, kind: str, base: str | None) -> dict[str, Any]:
    layout = directory.recognise(folder, kind, hidden=True)
    if base is not None:
        _fit(layout, directory.read_headers(layout), Path(base))
        return {}
    content = directory.examine(layout)
    return {
        "lora": _lora(content),
        "step": content.step,
        "whole": _needed_whole(layout, content),
        "templates": [part for part in layout.parts if _has_template(layout.parts[part], part)],
    }


def _fit(layout: Layout, content: Content, base: Path) -> None:
    shards = read_shards(base)
    if content.adapter is not None:
        with directory.named(f"{ADAPTER}/"):
            fit_adapter(content.adapter, layout.parts[ADAPTER], base, shards)
    if content.merged is not None:
        with directory.named(f"{MERGED}/"):
            fit_merged(layout.parts[MERGED], content.merged, base, shards)


def _lora(content: Content) -> dict[str, Any]:
    """Empty for full weights that no adapter belongs to."""
    if content.adapter is None:
        return {}
    config = content.adapter.config
    return {
        "rank": config.rank,
        "alpha": config.alpha,
        "targets": list(config.targets),
        "seed": content.seed,
    }


def _has_template(target: Path, part: str) -> bool:
    with directory.named(f"{part}/"):
        return bool(read_templates(target, read_tokenizer_config(target)))


def _needed_whole(layout: Layout, content: Content) -> list[str]:
    """A tied model that stores its head too: both tensors must be the same."""
    shards: Shards | None = content.merged
    if shards is None or not any(HEAD in tensors for tensors in shards.values()):
        return []
    if not read_json(layout.parts[MERGED], CONFIG).get("tie_word_embeddings", False):
        return []
    names = {HEAD, embedding_name(shards)}
    return [f"{MERGED}/{file}" for file, tensors in shards.items() if names & tensors.keys()]


if __name__ == "__main__":
    main()
