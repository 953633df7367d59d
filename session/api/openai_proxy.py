"""Requests for a deployment, passed to its serving process and metered on the way back."""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import Request
from fastapi.responses import JSONResponse, Response

from registry.access.actor import Actor
from registry.deployments.errors import DeploymentStarting
from registry.deployments.model import Route
from registry.kit.db import Database
from registry.kit.errors import Kind, ServiceError
from registry.kit.ids import new_id
from registry.usage import service as usage
from registry.usage.model import Category
from session.api.openai_answers import DONE, sse
from session.api.openai_errors import error_body
from session.api.openai_schemas import ChatRequest, TextRequest
from session.api.openai_stream import EventStream, attended


class ServingEnded(ServiceError):
    kind = Kind.unavailable

    def __init__(self, name: str) -> None:
        super().__init__(f"the process that serves {name} ended in the middle of its answer")


class ServingFailed(ServiceError):
    kind = Kind.internal

    def __init__(self, name: str) -> None:
        super().__init__(f"the process that serves {name} failed; its log has the reason")


class Meter:
    """The tokens of one request as its answer tells them, also where it is cut."""

    def __init__(self) -> None:
        self._prompt = 0
        self._sampled = 0
        self._parts = 0

    def see(self, payload: Mapping[str, Any]) -> None:
        """Totals replace earlier ones; where a target gives none, each part is taken as a token."""
        found = payload.get("usage")
        if found:
            self._prompt = found["prompt_tokens"]
            self._sampled = found["completion_tokens"]
        self._parts += sum(1 for choice in payload.get("choices", ()) if _has_text(choice))

    @property
    def counts(self) -> dict[Category, int]:
        return {Category.prefill: self._prompt, Category.sample: self._sampled or self._parts}


def _has_text(choice: Mapping[str, Any]) -> bool:
    return bool(choice.get("text") or choice.get("delta", {}).get("content"))


def connect() -> httpx.AsyncClient:
    """To processes on this machine: an answer may take long, a connection may not."""
    return httpx.AsyncClient(
        timeout=httpx.Timeout(None, connect=5.0),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        trust_env=False,
    )


@dataclass(frozen=True, slots=True)
class Proxy:
    """`path` is the endpoint below `/v1/` of the serving process."""

    client: httpx.AsyncClient
    database: Database
    actor: Actor
    route: Route
    path: str

    async def answer(self, http: Request, body: ChatRequest | TextRequest) -> Response:
        if body.stream:
            return await self._stream(http, body)
        answer = await attended(http, self._send(body, stream=False))
        payload = self._payload(answer)
        if answer.is_error:
            return JSONResponse(payload, answer.status_code)
        meter = Meter()
        meter.see(payload)
        await self._account(meter)
        return JSONResponse({**payload, "model": self.route.name})

    async def _stream(self, http: Request, body: ChatRequest | TextRequest) -> Response:
        answer = await attended(http, self._send(body, stream=True))
        if answer.is_error:
            await answer.aread()
            return JSONResponse(self._payload(answer), answer.status_code)
        meter = Meter()

        async def ended() -> None:
            await answer.aclose()
            await self._account(meter)

        return EventStream(self._events(answer, meter, body.wants_usage), ended=ended)

    async def _events(
        self, answer: httpx.Response, meter: Meter, wants_usage: bool
    ) -> AsyncIterator[bytes]:
        try:
            async for line in answer.aiter_lines():
                data = line.removeprefix("data: ")
                if data == "[DONE]":
                    yield DONE
                    return
                if data != line:
                    payload = json.loads(data)
                    meter.see(payload)
                    if event := self._public(payload, wants_usage):
                        yield event
        except httpx.HTTPError:
            pass  # said below, as is an answer that just ends
        yield sse(error_body(ServingEnded(self.route.name)))

    def _payload(self, answer: httpx.Response) -> dict[str, Any]:
        """Of an error that it did not expect, a process says no more than that."""
        if answer.status_code == 500:
            raise ServingFailed(self.route.name)
        try:
            payload: dict[str, Any] = answer.json()
        except ValueError:
            raise ServingFailed(self.route.name) from None
        return payload

    def _public(self, payload: dict[str, Any], wants_usage: bool) -> bytes | None:
        """An event as the client asked for it: under the public name, usage only if wanted."""
        if "error" in payload:
            return sse(payload)
        is_last = not payload["choices"]
        if is_last and not wants_usage:
            return None
        payload["model"] = self.route.name
        if not wants_usage:
            payload.pop("usage", None)
        elif not is_last:
            payload["usage"] = None
        return sse(payload)

    async def _send(self, body: ChatRequest | TextRequest, *, stream: bool) -> httpx.Response:
        content = body.model_dump(exclude_none=True) | {"model": self.route.served_name}
        if stream:
            # A stream can be cut at any moment, so it has to say all along what it has used.
            content["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        else:
            content.pop("stream_options", None)
        url = f"{self.route.address}/v1/{self.path}"
        request = self.client.build_request("POST", url, json=content)
        try:
            return await self.client.send(request, stream=stream)
        except httpx.ConnectError:
            raise DeploymentStarting(self.route.name) from None
        except httpx.HTTPError:
            raise ServingEnded(self.route.name) from None

    async def _account(self, meter: Meter) -> None:
        async with self.database.begin() as db:
            await usage.record(
                db,
                account_id=self.actor.account_id,
                operation_id=new_id("cmp"),
                model=self.route.base_model,
                counts=meter.counts,
                deployment=self.route.name,
            )
