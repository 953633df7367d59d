"""HTTP to the service: one connection pool, retries, typed errors."""

import asyncio
import logging
import random
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from uuid import uuid4

import httpx
import msgspec

from session import wire
from session.client import leaving
from session.client.background import Background
from session.client.config import Config
from session.client.errors import APIError, ConnectionFailed, ServerError, api_error
from session.client.following import Following
from session.wire import FRAMES, MEDIA, WireError, pack, unpack

T = TypeVar("T")
log = logging.getLogger("modelyard")

_KEY = "Idempotency-Key"
WAIT_S = 20  # how long the service may hold one question for a result
SAMPLES_IN_FLIGHT = 256
_AWAY = {502, 503, 504}
_TRY_AGAIN = {429} | _AWAY
_NEVER_ARRIVED = (httpx.ConnectError, httpx.ConnectTimeout)
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.1, 8.0
_FIRST_CONTACT_S = 10.0  # a wrong URL should not take the whole timeout to show
_LAST_WAIT_S = 10.0  # once we are to close, for a service that is gone: it may just restart
_READ_S = 60.0


class Connection:
    """What the clients of one ServiceClient share. Coroutines run in its background loop."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.background = Background()
        self.sampling = asyncio.Semaphore(SAMPLES_IN_FLIGHT)
        self._met = False
        self._outage_said = False
        self._gone = self._closing = False
        leaving.close_at_exit(self)
        # Own transport, so no proxy of the environment stands between us and a service nearby.
        # Unbounded, so that open sampling requests never hold a training operation back.
        self._http = httpx.AsyncClient(
            base_url=config.url,
            headers={"Authorization": f"Bearer {config.api_key}"},
            transport=httpx.AsyncHTTPTransport(
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
                socket_options=_keepalive(),
            ),
        )

    def close(self, *, wait: bool) -> None:
        """What has no result yet is waited for, or ended. Closing twice is nothing."""
        leaving.forget(self)
        self._closing = True
        try:
            if wait:
                self._say_gone()
                self.background.calls.wait(self.config.timeout_s)
        finally:
            self.background.calls.report()
            self.background.close(self._http.aclose)

    async def send(
        self, path: str, body: msgspec.Struct, form: type[T], *, read_s: float | None = _READ_S
    ) -> T:
        """POST one wire struct that carries its own token, so that it may be sent again."""
        return await self._wire(self._prepare("POST", path, read_s, content=pack(body)), form)

    async def follow(self, path: str, body: msgspec.Struct, *, wait_s: int) -> Following:
        """The same of an operation. Its answer goes on for so long, until the operation ends."""
        request = self._prepare(
            "POST", path, wait_s + _READ_S, content=pack(body), params={"wait": str(wait_s)}
        )
        request.headers["Accept"] = f"{FRAMES}, {MEDIA}"
        response = await self._ask(request, stream=True)
        try:
            return await Following.read(response)
        except WireError as error:
            raise self._strange(response, error) from error
        except httpx.TransportError:  # it may be stored, and is found by its token
            return Following(await self.send(path, body, wire.Operation))

    async def outcome(self, path: str, form: type[T], wait_s: int = WAIT_S) -> T:
        """GET a wire struct, giving the service some time to have it ready."""
        params = {"wait": str(wait_s)}
        return await self._wire(self._prepare("GET", path, WAIT_S + _READ_S, params=params), form)

    async def get(
        self, path: str, form: type[T], params: Mapping[str, str | int | None] | None = None
    ) -> T:
        known = {key: str(value) for key, value in (params or {}).items() if value is not None}
        response = await self._ask(self._prepare("GET", path, WAIT_S + _READ_S, params=known))
        return self._read(response, form)

    async def outcome_json(self, path: str, form: type[T]) -> T:
        """The same of what only speaks JSON."""
        return await self.get(path, form, {"wait": WAIT_S})

    async def post(self, path: str, body: Mapping[str, Any], form: type[T]) -> T:
        """POST JSON, under a key that lets the service do it once however often it arrives."""
        request = self._prepare("POST", path, _READ_S, json=body)
        request.headers[_KEY] = uuid4().hex
        return self._read(await self._ask(request), form)

    async def post_again(self, path: str, body: Mapping[str, Any], form: type[T]) -> T:
        """POST JSON that means the same however often it arrives."""
        request = self._prepare("POST", path, WAIT_S + _READ_S, json=body)
        return self._read(await self._ask(request), form)

    async def put(self, path: str, data: bytes) -> None:
        """Bytes that replace themselves where they arrive twice."""
        request = self._prepare("PUT", path, _READ_S, content=data)
        request.headers["Content-Type"] = "application/octet-stream"
        await self._ask(request)

    async def post_long(self, path: str, form: type[T]) -> T:
        """POST what changes nothing and may take very long."""
        return self._read(await self._ask(self._prepare("POST", path, None)), form)

    async def get_long(self, path: str, params: Mapping[str, str]) -> bytes:
        """GET what may take very long, as it comes."""
        return (await self._ask(self._prepare("GET", path, None, params=params))).content

    async def change(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        form: type[T],
        *,
        revision: int | None,
        params: Mapping[str, str] | None = None,
    ) -> T:
        """Only if it is at that revision; None makes what is not there. It has a key too."""
        given: dict[str, Any] = {} if body is None else {"json": body}
        request = self._prepare(method, path, _READ_S, params=params, **given)
        request.headers[_KEY] = uuid4().hex
        name, value = ("If-None-Match", "*") if revision is None else ("If-Match", f'"{revision}"')
        request.headers[name] = value
        return self._read(await self._ask(request), form)

    async def put_json(self, path: str, body: Mapping[str, Any], form: type[T]) -> T:
        """PUT JSON: once more makes it no other."""
        return self._read(await self._ask(self._prepare("PUT", path, _READ_S, json=body)), form)

    async def delete(self, path: str) -> None:
        """With a key, so that a second try does not find it gone by the first."""
        request = self._prepare("DELETE", path, _READ_S)
        request.headers[_KEY] = uuid4().hex
        await self._ask(request)

    async def download(self, path: str) -> bytes:
        return (await self._ask(self._prepare("GET", path, _READ_S))).content

    @asynccontextmanager
    async def streamed(
        self, path: str, headers: Mapping[str, str]
    ) -> AsyncIterator[httpx.Response]:
        """GET a body that is not read yet. Reading it may raise httpx's TransportError."""
        request = self._prepare("GET", path, _READ_S)
        request.headers.update(headers)
        response = await self._ask(request, stream=True)
        try:
            yield response
        finally:
            await response.aclose()

    def _prepare(self, method: str, path: str, read_s: float | None, **body: Any) -> httpx.Request:
        timeout = httpx.Timeout(10.0, read=read_s, write=_READ_S, pool=None)
        request = self._http.build_request(method, path, timeout=timeout, **body)
        if "content" in body:
            request.headers["Content-Type"] = MEDIA
        return request

    async def _wire(self, request: httpx.Request, form: type[T]) -> T:
        request.headers["Accept"] = MEDIA
        response = await self._ask(request)
        try:
            return unpack(response.content, form)
        except WireError as error:
            raise self._strange(response, error) from error

    def _read(self, response: httpx.Response, form: type[T]) -> T:
        try:
            return msgspec.json.decode(response.content or b"null", type=form)
        except msgspec.DecodeError as error:
            raise self._strange(response, error) from error

    def _strange(self, response: httpx.Response, error: Exception) -> ServerError:
        where = f"{response.request.method} {response.request.url.path}"
        return ServerError(500, f"{self.config.url} answered {where} in an unknown form: {error}")

    async def _ask(self, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
        """Try until it is answered or the timeout is over, counted from the first failure."""
        now = asyncio.get_running_loop().time
        delay, since = _FIRST_DELAY_S, None
        while True:
            pause = random.uniform(delay / 2, delay)
            try:
                response = await self._http.send(request, stream=stream)
                if stream and not response.is_success:
                    await response.aread()
            except httpx.TransportError as error:
                trouble: Exception = error
                self._gone = isinstance(error, _NEVER_ARRIVED)
                repeat = True
            else:
                self._met, self._gone = True, False
                if since is not None and response.status_code not in _TRY_AGAIN:
                    self._say_recovery()
                if response.is_success or (stream and response.has_redirect_location):
                    return response
                trouble = _problem(response)
                repeat = response.status_code in _TRY_AGAIN or _still_runs(response)
                pause = max(pause, _retry_after(response))
            since = since or now()
            if not repeat or now() + pause > since + self._patience():
                raise self._final(trouble) from trouble
            self._say_outage(self._final(trouble))
            await asyncio.sleep(pause)
            delay = min(2 * delay, _LONGEST_DELAY_S)

    def _say_outage(self, trouble: Exception) -> None:
        """Once for all requests that meet it, until one of them is answered."""
        if not self._outage_said:
            self._outage_said = True
            log.warning("%s; trying again for up to %g s", trouble, self._patience())

    def _say_gone(self) -> None:
        if self._gone and self.background.calls.open():
            url, patience = self.config.url, self._patience()
            log.warning("nothing answers at %s; closing gives up after %g s", url, patience)

    def _say_recovery(self) -> None:
        if self._outage_said:
            self._outage_said = False
            log.warning("%s answers again", self.config.url)

    def _patience(self) -> float:
        whole = self.config.timeout_s
        if not self._met:
            return min(whole, _FIRST_CONTACT_S)
        return min(whole, _LAST_WAIT_S) if self._closing and self._gone else whole

    def _final(self, trouble: Exception) -> Exception:
        if isinstance(trouble, APIError) and trouble.status not in _AWAY:
            return trouble
        return ConnectionFailed(self.config.url, str(trouble) or type(trouble).__name__)


def _problem(response: httpx.Response) -> APIError:
    """The service answers problem+json; what stands before it may answer anything."""
    try:
        found = response.json()
        return api_error(response.status_code, str(found["detail"]), str(found.get("kind", "")))
    except (ValueError, KeyError, TypeError, AttributeError):
        return api_error(response.status_code, response.text[:200] or response.reason_phrase)


def _still_runs(response: httpx.Response) -> bool:
    """What we sent before, under the same key: its answer was lost, and there will be one."""
    is_conflict = response.status_code == httpx.codes.CONFLICT
    return is_conflict and "Retry-After" in response.headers


def _retry_after(response: httpx.Response) -> float:
    try:
        return float(response.headers.get("Retry-After", 0))
    except ValueError:
        return 0.0


def _keepalive() -> list[tuple[int, int, int]]:
    """A sample may take minutes without a byte, so the kernel must notice a dead peer."""
    options = [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    ]
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options
