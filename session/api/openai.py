"""OpenAI's chat completions, completions and models, for deployments and for live weights.

`model` is a deployment's name, a session's name (its current weights) or GROUP@VERSION; a
deployment goes first. A request without a limit gets what is left of the context, at most
1,024 tokens.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypedDict

import httpx
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response

from registry.access.actor import Actor
from registry.api.auth import Member, Viewer
from registry.deployments import service as deployments
from registry.kit.db import Database
from session.api.openai_answers import Draw
from session.api.openai_errors import ModelFilesMissing, ModelNotFound, OpenAIRoute
from session.api.openai_generation import answer, model_card
from session.api.openai_proxy import Proxy, connect
from session.api.openai_schemas import ChatRequest, TextRequest
from session.engine.port import SampleChunk, Tokens
from session.sampling.chat import ChatTokenizer, chat_tokenizer


@dataclass(frozen=True)
class Resolved:
    """Live weights that a `model` names. A sampler may add what it needs in a subclass."""

    directory: Path
    """Of the base model: its tokenizer and chat template."""
    context_length: int


@dataclass(frozen=True, slots=True)
class LiveModel:
    """A session that can be asked now."""

    name: str
    created_at: datetime


class Sampler(Protocol):
    """Samples from sessions and versions, as `app.state.sampler`. It meters by itself."""

    async def models(self, actor: Actor) -> Sequence[LiveModel]: ...

    async def resolve(self, actor: Actor, model: str) -> Resolved:
        """Raises an error of kind not_found for a name it does not know."""
        ...

    def sample(
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
        """Closing the iterator cancels it; what was sent until then is metered."""
        ...


class _Lent(TypedDict):
    serving: httpx.AsyncClient


@asynccontextmanager
async def _lend(_: FastAPI) -> AsyncIterator[_Lent]:
    async with connect() as client:
        yield {"serving": client}


router = APIRouter(prefix="/openai/v1", tags=["OpenAI"], route_class=OpenAIRoute, lifespan=_lend)


_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "As OpenAI's; with `stream`, events of its chunks.",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    }
}


@router.post("/chat/completions", response_class=Response, responses=_ANSWERS)
async def chat_completions(http: Request, actor: Member, body: ChatRequest) -> Response:
    return await _complete(http, actor, body, path="chat/completions")


@router.post("/completions", response_class=Response, responses=_ANSWERS)
async def completions(http: Request, actor: Member, body: TextRequest) -> Response:
    return await _complete(http, actor, body, path="completions")


@router.get("/models")
async def list_models(http: Request, actor: Viewer) -> dict[str, Any]:
    return {"object": "list", "data": await _cards(http, actor)}


@router.get("/models/{model:path}")
async def show_model(http: Request, actor: Viewer, model: str) -> dict[str, Any]:
    cards = {card["id"]: card for card in await _cards(http, actor)}
    if model not in cards:
        raise ModelNotFound(model)
    return cards[model]


async def _complete(
    http: Request, actor: Actor, body: ChatRequest | TextRequest, *, path: str
) -> Response:
    database: Database = http.app.state.database
    async with database.read() as db:
        standing = await deployments.deployment(db, actor, body.model)
    if standing is not None:
        proxy = Proxy(http.state.serving, database, actor, standing.route(), path)
        return await proxy.answer(http, body)
    sampler: Sampler = http.app.state.sampler
    resolved = await sampler.resolve(actor, body.model)

    def generate(draw: Draw) -> AsyncIterator[SampleChunk]:
        return sampler.sample(
            actor,
            resolved,
            prompt=draw.prompt,
            max_tokens=draw.max_tokens,
            n=draw.n,
            temperature=draw.temperature,
            top_p=draw.top_p,
            seed=draw.seed,
            stop=draw.stop,
        )

    chat = await _chat(body.model, resolved)
    return await answer(
        http, body, chat=chat, context_length=resolved.context_length, generate=generate
    )


async def _chat(model: str, resolved: Resolved) -> ChatTokenizer:
    """A directory that was moved or is not mounted may come back: nothing is wrong with the ask."""
    try:
        return await asyncio.to_thread(chat_tokenizer, resolved.directory)
    except OSError as error:
        raise ModelFilesMissing(model, error.strerror or type(error).__name__) from error


async def _cards(http: Request, actor: Actor) -> list[dict[str, Any]]:
    """Deployments hide sessions of the same name, as they do when one is asked for."""
    database: Database = http.app.state.database
    sampler: Sampler = http.app.state.sampler
    async with database.read() as db:
        served = (await deployments.deployments(db, actor, limit=1000)).items
    created = {live.name: live.created_at for live in await sampler.models(actor)}
    created |= {each.deployment.name: each.deployment.created_at for each in served}
    return [
        model_card(name, created=int(moment.timestamp()), owned_by=actor.account_id)
        for name, moment in created.items()
    ]
