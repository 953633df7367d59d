"""The engine in this process: `compute` in one worker thread, one turn of work at a time."""

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from registry.kit.threads import in_own_thread
from session.engine.port import (
    AdamParams,
    BaseRef,
    Datum,
    EngineError,
    LoraConfig,
    Loss,
    LossOutput,
    SampleChunk,
    SampleRequest,
    StepResult,
)
from session.engine.turns import Turns

if TYPE_CHECKING:
    from session.engine.compute.lora import Adapter
    from session.engine.compute.sampler import Ticket

Told = SampleChunk | Exception
Reader = tuple[asyncio.AbstractEventLoop, asyncio.Queue[Told]]

T = TypeVar("T")


class LocalEngine:
    """Building one imports torch; importing this module does not."""

    def __init__(
        self,
        *,
        micro_batch_tokens: int = 512,
        activation_bytes: int = 2 * 2**30,
        cache_bytes: int = 2 * 2**30,
        packed_bytes: int = 2**30,
        dtype: str = "float32",
        device: str = "cpu",
        threads: int | None = None,
    ) -> None:
        import torch

        from session.engine.compute import memory, weights
        from session.engine.compute.engine import Compute

        def start() -> None:
            if threads is not None:
                torch.set_num_threads(threads)  # of the thread that calls it

        self._compute = Compute(
            micro_batch_tokens=micro_batch_tokens,
            activation_bytes=activation_bytes,
            cache_bytes=cache_bytes,
            packed_bytes=packed_bytes,
            dtype=dtype,
            device=device,
        )
        self._write = weights.write
        self._is_out_of_memory = memory.is_out_of_memory
        self._readers: dict[Ticket, Reader] = {}
        self._turns = Turns(self._pass, start=start)
        self._saves: set[asyncio.Task[None]] = set()
        self._closed = False

    async def create_model(self, model_id: str, *, base: BaseRef, lora: LoraConfig) -> None:
        await self._run(lambda: self._compute.create_model(model_id, base, lora))

    async def forward(
        self, model_id: str, data: Sequence[Datum], *, loss: Loss, config: Mapping[str, float]
    ) -> list[LossOutput]:
        return await self._collect(self._compute.forward(model_id, data, loss, config))

    async def forward_backward(
        self, model_id: str, data: Sequence[Datum], *, loss: Loss, config: Mapping[str, float]
    ) -> list[LossOutput]:
        return await self._collect(self._compute.forward_backward(model_id, data, loss, config))

    async def optim_step(self, model_id: str, params: AdamParams) -> StepResult:
        return await self._run(lambda: self._compute.optim_step(model_id, params))

    async def clear_gradient(self, model_id: str) -> None:
        await self._run(lambda: self._compute.clear_gradient(model_id))

    async def load(self, model_id: str, source: Path, *, with_optimizer: bool) -> None:
        await self._run(lambda: self._compute.load(model_id, source, with_optimizer=with_optimizer))

    async def save(self, model_id: str, target: Path, *, with_optimizer: bool) -> Awaitable[None]:
        # A model in training never changes, it is replaced: the reference is the copy.
        training = await self._run(lambda: self._compute.model(model_id))
        writing = asyncio.create_task(
            in_own_thread(self._write, training, target, with_optimizer=with_optimizer)
        )
        self._saves.add(writing)
        writing.add_done_callback(self._saves.discard)
        return writing

    async def load_adapter(self, adapter_id: str, *, base: BaseRef, source: Path) -> None:
        await self._run(lambda: self._compute.load_adapter(adapter_id, base, source))

    def sample(self, request: SampleRequest) -> AsyncIterator[SampleChunk]:
        """Unknown weights raise here already: this is where they are fixed."""
        self._require_open()
        return self._sample(request, self._compute.weights_of(request))

    async def drop(self, weights_id: str) -> None:
        await self._run(lambda: self._compute.drop(weights_id))

    async def close(self) -> None:
        """Waits for the turn that runs and for files being written; the rest of the work fails."""
        self._closed = True
        await asyncio.gather(*self._saves, return_exceptions=True)
        await asyncio.to_thread(self._turns.close)
        for loop, queue in list(self._readers.values()):
            _tell(loop, [(queue, EngineError("the engine is closed"))])

    async def _sample(
        self, request: SampleRequest, adapter: "Adapter | None"
    ) -> AsyncGenerator[SampleChunk]:
        """Joins what runs, and leaves it when its reader does."""
        loop = asyncio.get_running_loop()
        told: asyncio.Queue[Told] = asyncio.Queue()
        joined: list[Ticket] = []

        def join() -> None:
            ticket = self._compute.join(request, adapter)
            self._readers[ticket] = (loop, told)
            joined.append(ticket)

        unfinished = request.n
        try:
            await self._note(join)
            while unfinished:
                event = await told.get()
                if isinstance(event, Exception):
                    raise event
                unfinished -= event.stop_reason is not None
                yield event
        finally:
            if not self._closed:
                await asyncio.shield(self._note(lambda: self._leave(joined)))

    def _leave(self, joined: "list[Ticket]") -> None:
        """Notes keep their order: who goes away while it joins leaves after that."""
        for ticket in joined:
            self._readers.pop(ticket, None)
            self._compute.sampling.leave(ticket)

    def _pass(self) -> bool:
        """In the thread: a loop is woken once for everything that a pass brought to its readers."""
        told: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Queue[Told], Told]]] = {}
        for ticket, event in self._compute.sampling.step():
            loop, queue = self._readers[ticket]
            told.setdefault(loop, []).append((queue, event))
        for loop, events in told.items():
            _tell(loop, events)
        return not self._compute.sampling.is_idle

    async def _collect(self, work: Iterator[dict[int, LossOutput]]) -> list[LossOutput]:
        results: dict[int, LossOutput] = {}
        while (part := await self._run(lambda: next(work, None))) is not None:
            results |= part
        return [results[index] for index in sorted(results)]

    async def _run(self, job: Callable[[], T]) -> T:
        self._require_open()
        return await asyncio.wrap_future(self._turns.take(lambda: self._turn(job)))

    async def _note(self, job: Callable[[], T]) -> T:
        self._require_open()
        return await asyncio.wrap_future(self._turns.note(lambda: self._turn(job)))

    def _turn(self, job: Callable[[], T]) -> T:
        self._require_open()
        try:
            return job()
        except (MemoryError, RuntimeError) as error:
            if not self._is_out_of_memory(error):
                raise
            raise EngineError("out of memory") from error

    def _require_open(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed")


def _tell(loop: asyncio.AbstractEventLoop, events: list[tuple[asyncio.Queue[Told], Told]]) -> None:
    """From any thread."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(_put, events)


def _put(events: list[tuple[asyncio.Queue[Told], Told]]) -> None:
    for queue, event in events:
        queue.put_nowait(event)
