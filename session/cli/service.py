"""A running service, spoken to over its REST interface with the caller's own credentials."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import httpx

from session.client.config import Config, from_environment
from session.client.errors import ConnectionFailed, api_error

_CONNECT_S = 5.0
_PAGE = 200


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

    def post_long(self, path: str) -> Any:
        """For what takes as long as it takes."""
        return self._answer("POST", path, timeout=httpx.Timeout(None, connect=_CONNECT_S))

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
        with self._connected():
            response = self._http.request(method, path, **parts)
        if response.is_error:
            raise _refusal(response)
        if response.status_code == httpx.codes.NO_CONTENT:
            return None
        try:
            return response.json()
        except ValueError:
            raise ConnectionFailed(self.url, "what answers there is not modelyard") from None

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
