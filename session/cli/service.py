"""A running service, spoken to over its REST interface with the caller's own credentials."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import httpx

from session.cli.errors import CommandFailed
from session.client.config import Config, from_environment
from session.client.errors import ConnectionFailed, api_error

_CONNECT_S = 5.0
_PAGE = 200
_PAUSES_S = (0.2, 1.0, 3.0)


class Service:
    def __init__(self, config: Config) -> None:
        self.url = config.url
        self._http = httpx.Client(
            base_url=config.url,
            headers={"Authorization": f"Bearer {config.api_key}"},
            timeout=httpx.Timeout(config.timeout_s, connect=min(_CONNECT_S, config.timeout_s)),
        )

    @classmethod
    def from_environment(cls) -> Self:
        return cls(from_environment(by_argument=False))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def get(self, path: str, **query: Any) -> Any:
        return self._answer("GET", path, params=_given(query))

    def post(self, path: str, body: Any = None) -> Any:
        return self._answer("POST", path, json=body)

    def put(self, path: str, body: Any) -> Any:
        return self._answer("PUT", path, json=body)

    def patch(self, path: str, body: Any) -> Any:
        return self._answer("PATCH", path, json=body)

    def delete(self, path: str, **query: Any) -> Any:
        return self._answer("DELETE", path, params=_given(query))

    def post_long(self, path: str, body: Any = None, **query: Any) -> Any:
        """For what takes as long as it takes."""
        unbounded = httpx.Timeout(None, connect=_CONNECT_S)
        return self._answer("POST", path, json=body, params=_given(query), timeout=unbounded)

    def change(
        self, method: str, path: str, body: Any, *, revision: int | None, **query: Any
    ) -> Any:
        """Only if it still is at that revision; None makes what is not there yet."""
        expected = {"If-None-Match": "*"} if revision is None else {"If-Match": f'"{revision}"'}
        given = {} if body is None else {"json": body}
        return self._answer(method, path, headers=expected, params=query, **given)

    def page(self, path: str, **query: Any) -> tuple[list[Any], bool]:
        """The first page, and whether there is more."""
        answer = self.get(path, **query)
        return answer["data"], bool(answer.get("next_cursor"))

    def pages(self, path: str, **query: Any) -> list[Any]:
        """Every row of a list."""
        rows: list[Any] = []
        cursor: str | None = None
        while True:
            answer = self.get(path, **query, limit=_PAGE, cursor=cursor)
            rows += answer["data"]
            cursor = answer.get("next_cursor")
            if not cursor:
                return rows

    @contextmanager
    def stream(self, path: str) -> Iterator[Iterator[bytes]]:
        with self._connected(), self._http.stream("GET", path) as response:
            if response.is_error:
                response.read()
                raise _refusal(response)
            yield response.iter_bytes()

    def _answer(self, method: str, path: str, **parts: Any) -> Any:
        try:
            request = self._http.build_request(method, path, **parts)
        except ValueError as error:  # not a number in JSON, not Unicode
            raise CommandFailed(f"this cannot be sent: {error}") from None
        if method != "GET":
            request.headers["Idempotency-Key"] = uuid4().hex
        with self._connected():
            response = self._sent(request)
        if response.is_error:
            raise _refusal(response)
        if response.status_code == httpx.codes.NO_CONTENT:
            return None
        try:
            return response.json()
        except ValueError:
            raise ConnectionFailed(self.url, "what answers there is not modelyard") from None

    def _sent(self, request: httpx.Request) -> httpx.Response:
        """Once more where the answer was cut off: under its key, nothing is done twice."""
        for pause in _PAUSES_S:
            try:
                response = self._http.send(request)
            except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
                time.sleep(pause)
                continue
            is_conflict = response.status_code == httpx.codes.CONFLICT
            if not is_conflict or "Retry-After" not in response.headers:
                return response
            time.sleep(pause)
        return self._http.send(request)

    @contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            reason = f"{error}; is it running? start it with: modelyard serve"
            raise ConnectionFailed(self.url, reason) from None
        except httpx.TransportError as error:
            raise ConnectionFailed(self.url, str(error) or type(error).__name__) from None


def _given(query: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in query.items() if value is not None}


def _refusal(response: httpx.Response) -> Exception:
    """The service answers problem+json; whatever stands in front of it may not."""
    try:
        problem = response.json()
        return api_error(response.status_code, problem["detail"], problem.get("kind", ""))
    except (ValueError, KeyError, TypeError):
        return api_error(response.status_code, f"{response.url} answered {response.reason_phrase}")
