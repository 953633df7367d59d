"""One attempt over HTTP: signed, to an address that may be connected to, without redirects."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpcore
from standardwebhooks.webhooks import Webhook as Signer

from registry.events.errors import TargetRefused
from registry.events.model import Event
from registry.events.targets import Targets

_LONGEST_ERROR = 300
_CONNECT_S = 5.0
_FAILURES = (
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.TimeoutException,
    OSError,  # ssl.SSLError is one
)


@dataclass(frozen=True, slots=True)
class Answer:
    """`status` is None where nobody answered."""

    status: int | None
    error: str = ""

    @property
    def is_delivered(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_gone(self) -> bool:
        """The receiver wants no more of it."""
        return self.status == 410


class Sender:
    def __init__(self, targets: Targets, *, timeout_s: float) -> None:
        self._targets = targets
        self._timeout_s = timeout_s
        self._pool = httpcore.AsyncConnectionPool(
            network_backend=_Guarded(targets),
            max_connections=None,
            max_keepalive_connections=0,  # each attempt looks anew at where the name leads
        )

    async def send(self, url: str, body: bytes, headers: dict[str, str]) -> Answer:
        """Never raises for what a receiver does, or for where it is."""
        try:
            self._targets.read(url)
            async with asyncio.timeout(self._timeout_s):
                return await self._send(url, body, headers)
        except TargetRefused as refusal:
            return Answer(None, refusal.message[:_LONGEST_ERROR])
        except TimeoutError:
            return Answer(None, f"no answer within {self._timeout_s:g} s")
        except _FAILURES as error:
            return Answer(None, f"{type(error).__name__}: {error}"[:_LONGEST_ERROR])

    async def _send(self, url: str, body: bytes, headers: dict[str, str]) -> Answer:
        """The status says it all; what else the receiver answers is not read."""
        said = list(headers.items())
        async with self._pool.stream("POST", url, headers=said, content=body) as response:
            status: int = response.status
        error = "" if 200 <= status < 300 else f"answered {status}"
        if 300 <= status < 400:
            error += ", and redirects are not followed"
        return Answer(status, error)

    async def close(self) -> None:
        await self._pool.aclose()


def document(event: Event) -> str:
    """The body as Standard Webhooks has it."""
    moment = event.created_at.isoformat().replace("+00:00", "Z")
    told = {"type": event.type, "timestamp": moment, "data": event.data}
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False)


def signed(event: Event, body: str, secrets: Sequence[str], *, at: datetime) -> dict[str, str]:
    """One signature for each secret that is valid now."""
    signatures = [Signer(secret).sign(event.id, at, body) for secret in secrets]
    return {
        "content-type": "application/json",
        "user-agent": "modelyard-webhooks",
        "webhook-id": event.id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


class _Guarded(httpcore.AsyncNetworkBackend):
    """Resolves by our rules, and connects to what was resolved. TLS still asks for the name."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._plain = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  # httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        *others, last = await self._targets.addresses(host, port)
        for address in others:
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return await self._plain.connect_tcp(address, port, _CONNECT_S)
        return await self._plain.connect_tcp(last, port, _CONNECT_S)

    async def sleep(self, seconds: float) -> None:
        await self._plain.sleep(seconds)
