"""The wire of one serving process. It has no database: who may ask is settled before it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response

from registry.kit.clock import now
from session.api.openai_answers import Draw
from session.api.openai_errors import ModelNotFound, OpenAIRoute
from session.api.openai_generation import answer, model_card
from session.api.openai_schemas import ChatRequest, TextRequest
from session.engine.port import BaseRef, Engine, SampleChunk, SampleRequest
from session.sampling.chat import ChatTokenizer

router = APIRouter(route_class=OpenAIRoute)


@dataclass(frozen=True, slots=True)
class Serving:
    """The one model of this process."""

    engine: Engine
    base: BaseRef
    chat: ChatTokenizer
    context_length: int

    async def warm_up(self) -> None:
        """Loads the model. Healthy means that a token has come out, not that files were found."""
        prompt = np.array([0], np.int64)
        async for _ in self.engine.sample(SampleRequest(self.base, None, prompt, max_tokens=1)):
            pass

    def generate(self, draw: Draw) -> AsyncIterator[SampleChunk]:
        return self.engine.sample(
            SampleRequest(
                base=self.base,
                weights=None,
                prompt=draw.prompt,
                max_tokens=draw.max_tokens,
                n=draw.n,
                temperature=draw.temperature,
                top_p=draw.top_p,
                seed=draw.seed,
                stop_strings=draw.stop,
            )
        )


def create_app(serving: Serving) -> FastAPI:
    """It is healthy as soon as it answers: `warm_up` comes first."""
    app = FastAPI(openapi_url=None)
    app.state.serving = serving
    app.include_router(router)
    return app


@router.get("/health")
async def health(http: Request) -> dict[str, str]:
    return {"status": "ok", "model": _serving(http).base.name}


@router.get("/v1/models")
async def models(http: Request) -> dict[str, Any]:
    card = model_card(
        _serving(http).base.name, created=int(now().timestamp()), owned_by="modelyard"
    )
    return {"object": "list", "data": [card]}


@router.post("/v1/chat/completions", response_class=Response)
async def chat_completions(http: Request, body: ChatRequest) -> Response:
    return await _answer(http, body)


@router.post("/v1/completions", response_class=Response)
async def completions(http: Request, body: TextRequest) -> Response:
    return await _answer(http, body)


async def _answer(http: Request, body: ChatRequest | TextRequest) -> Response:
    serving = _serving(http)
    if body.model != serving.base.name:
        raise ModelNotFound(body.model)
    return await answer(
        http,
        body,
        chat=serving.chat,
        context_length=serving.context_length,
        generate=serving.generate,
    )


def _serving(http: Request) -> Serving:
    found: Serving = http.app.state.serving
    return found
