"""Base models as they lie on this machine: nothing reads one that is not what was registered."""

import asyncio
from collections.abc import Awaitable, Callable

from registry.models import service as models
from registry.models.model import BaseModel
from registry.models.service import Stamps
from session.checkpoints import base_ref
from session.engine.port import BaseRef


class Bases:
    """Compares files with the registered ones. One base at a time: the disk is the limit."""

    def __init__(self, find: Callable[[str], Awaitable[BaseModel]]) -> None:
        self._find = find
        self._compared: dict[str, Stamps] = {}
        self._held: set[str] = set()
        self._lock = asyncio.Lock()

    async def ready(self, name: str) -> BaseRef:
        """For the engine, which reads a base once and shares it by digest from then on."""
        model = await self._find(name)
        if model.digest not in self._held:
            await self._compare(model)
            self._held.add(model.digest)
        return base_ref(model)

    async def readable(self, name: str) -> BaseRef:
        """For who reads the files anew: compared again where one was touched since."""
        model = await self._find(name)
        await self._compare(model)
        return base_ref(model)

    async def _compare(self, model: BaseModel) -> None:
        async with self._lock:
            found = await asyncio.to_thread(models.stamps, model)
            if self._compared.get(model.digest) != found:
                self._compared[model.digest] = await asyncio.to_thread(models.compare, model)
