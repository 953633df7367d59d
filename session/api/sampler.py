"""Live sessions and versions, as the OpenAI wire samples from them."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.kit.db import Database
from registry.models import service as models
from registry.packages.service import ALIASED, parse_ref
from session import wire
from session.api.openai import LiveModel, Resolved
from session.api.openai_errors import ModelNotFound
from session.api.samples import streamed
from session.engine.port import SampleChunk, Tokens
from session.lifecycle import service as lifecycle
from session.sampling import service as sampling
from session.sampling.frames import Target, to_engine
from session.worker.channel import WorkerChannel


@dataclass(frozen=True)
class LiveWeights(Resolved):
    model: str
    target: Target


class ServiceSampler:
    """Each request is a row, answered by the worker, which meters it."""

    def __init__(self, database: Database, channel: WorkerChannel) -> None:
        self._database = database
        self._channel = channel

    async def models(self, actor: Actor) -> Sequence[LiveModel]:
        async with self._database.read() as db:
            running = await lifecycle.running(db, actor)
        return [LiveModel(session.name, session.created_at) for session in running]

    async def resolve(self, actor: Actor, model: str) -> LiveWeights:
        async with self._database.read() as db:
            target = await _target(db, actor, model)
            base = await models.require_base_model(db, target.base_name)
        return LiveWeights(Path(base.path), base.context_length, model, target)

    async def sample(
        self,
        actor: Actor,
        resolved: Resolved,
        *,
        prompt: Tokens,
        max_tokens: int,
        n: int,
        temperature: float,
        top_p: float,
        seed: int | None,
        stop: tuple[str, ...],
    ) -> AsyncIterator[SampleChunk]:
        assert isinstance(resolved, LiveWeights)  # what `resolve` gave
        is_version = resolved.target.kind == "version"
        form = wire.Sampling(
            prompt=wire.Tensor.of(prompt),
            token=token_hex(16),
            max_tokens=max_tokens,
            n=n,
            session=None if is_version else resolved.model,
            source=resolved.model if is_version else None,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            stop=list(stop) or None,
        )
        database, channel = self._database, self._channel
        async with streamed(database, channel, actor, form, resolved.target) as chunks:
            async for chunk in chunks:
                yield to_engine(chunk)


async def _target(db: AsyncSession, actor: Actor, model: str) -> Target:
    if "@" in model or ALIASED.fullmatch(model):
        return await sampling.version_target(db, actor, parse_ref(model))
    if await lifecycle.session(db, actor, model) is None:
        raise ModelNotFound(model)
    return await sampling.session_target(db, actor, model)
