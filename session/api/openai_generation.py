"""From a request's prompt to its answer, the same in a serving process and for live weights."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
from fastapi import Request
from fastapi.responses import JSONResponse, Response

from session.api.openai_answers import (
    Answer,
    Assembly,
    ChatForm,
    Draw,
    Generate,
    TextForm,
)
from session.api.openai_errors import ContextExceeded, InvalidRequest
from session.api.openai_schemas import ChatRequest, TextRequest
from session.api.openai_stream import EventStream, attended, close
from session.engine.port import EngineError, SampleChunk
from session.sampling.chat import ChatTokenizer

UNASKED_TOKENS = 1024
"""The most an answer has where the request sets no limit: the rest of the context may be long."""


async def answer(
    http: Request,
    body: ChatRequest | TextRequest,
    *,
    chat: ChatTokenizer,
    context_length: int,
    generate: Generate,
) -> Response:
    draw = await asyncio.to_thread(_draw, body, chat, context_length)
    assembly, n = Assembly(chat, draw), draw.n
    options = body.stream_options
    envelope = Answer(
        form=ChatForm() if isinstance(body, ChatRequest) else TextForm(),
        model=body.model,
        logprobs=body.logprobs is not None and body.logprobs is not False,
        include_usage=body.wants_usage,
        running_usage=bool(options and options.continuous_usage_stats),
    )
    chunks = _translated(generate(draw))
    if not body.stream:
        try:
            whole = await attended(http, envelope.whole(chunks, assembly, n=n))
        finally:
            await close(chunks)
        return JSONResponse(whole)
    first = await attended(http, _first(chunks))
    events = envelope.events(_again(first, chunks), assembly, n=n)
    return EventStream(events, ended=lambda: close(chunks))


def _draw(body: ChatRequest | TextRequest, chat: ChatTokenizer, context: int) -> Draw:
    prompt = _prompt(body, chat)
    param = "messages" if isinstance(body, ChatRequest) else "prompt"
    if not prompt:
        raise InvalidRequest(param, "it has no tokens")
    wanted, room = body.wanted_tokens, context - len(prompt)
    if room < 1 or (wanted is not None and wanted > room):
        param = param if room < 1 else body.length_param
        raise ContextExceeded(param, context=context, prompt=len(prompt), wanted=wanted)
    return Draw(
        prompt=np.array(prompt, np.int64),
        max_tokens=wanted or min(room, UNASKED_TOKENS),
        n=body.n or 1,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=body.top_p or 1.0,
        seed=body.seed,
        stop=body.stops,
    )


def _prompt(body: ChatRequest | TextRequest, chat: ChatTokenizer) -> Sequence[int]:
    if isinstance(body, ChatRequest):
        messages = [message.for_template() for message in body.messages]
        return chat.encode_chat(messages, tools=body.offered_tools)
    if isinstance(body.prompt, str):
        return chat.encode(body.prompt, add_special_tokens=True)
    return body.prompt


async def _translated(chunks: AsyncIterator[SampleChunk]) -> AsyncIterator[SampleChunk]:
    """What the engine cannot compute is the request's fault."""
    try:
        async for chunk in chunks:
            yield chunk
    except EngineError as error:
        raise InvalidRequest("request", str(error)) from error
    finally:
        await close(chunks)


async def _first(chunks: AsyncIterator[SampleChunk]) -> list[SampleChunk]:
    """Awaited before the status is sent, so that a refusal is still an HTTP error."""
    try:
        return [await anext(chunks)]
    except StopAsyncIteration:
        return []


async def _again(
    first: Sequence[SampleChunk], rest: AsyncIterator[SampleChunk]
) -> AsyncIterator[SampleChunk]:
    for chunk in first:
        yield chunk
    async for chunk in rest:
        yield chunk


def model_card(model_id: str, *, created: int, owned_by: str) -> dict[str, Any]:
    return {"id": model_id, "object": "model", "created": created, "owned_by": owned_by}
